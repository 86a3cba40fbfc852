"""Commands in the fenced blocks of the Markdown pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[1]
PAGES = [
    *sorted(TOP.glob("*.md")),
    *sorted(
        page
        for folder in ("docs", "cluster", "demo", "benchmarks", "prompts")
        for page in (TOP / folder).rglob("*.md")
    ),
]
SHELL = {"", "shell", "sh", "bash", "console"}
JOBS = {"jobs/index.py": ["index"], "jobs/query.py": ["query", "--ray"]}
"""Scripts that are one command of `graphrag-ray` each."""

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_ENVIRONMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Typed:
    """A command line on a page. words: the arguments of `graphrag-ray`."""

    page: Path
    line: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(TOP)}: {self.line}"


def blocks(text: str, languages: set[str]) -> Iterator[str]:
    """Yield the fenced blocks in these languages. "" stands for blocks without a language."""
    for indent, language, body in _FENCE.findall(text):
        if language in languages:
            yield re.sub(f"^{indent}", "", body, flags=re.MULTILINE)


def shell_lines(text: str) -> Iterator[str]:
    """Yield command lines without prompts and comments. Continued lines are joined."""
    for block in blocks(text, SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s+#\s.*$", "", line.removeprefix("$ ")).strip()


def command_lines(text: str) -> Iterator[str]:
    """Yield command lines of a page. In blocks with prompts, lines without one are output and are skipped."""
    for block in blocks(text, SHELL):
        lines = [*shell_lines(f"```\n{block}```\n")]
        has_prompt = [line.startswith("$ ") for line in block.replace("\\\n", " ").splitlines()]
        yield from (
            line for line, prompt in zip(lines, has_prompt, strict=True) if line and prompt >= any(has_prompt)
        )


ON_A_CLUSTER = [
    line
    for line in command_lines((TOP / "README.md").read_text("utf-8"))
    if line.startswith(("export RAY", "ray ", "graphrag-ray status --root s3"))
]
"""Commands in the README that need a cluster."""


def typed() -> list[Typed]:
    """Find all calls of `graphrag-ray`, or of its job scripts, on all pages."""
    found = []
    for page in PAGES:
        for line in shell_lines(page.read_text("utf-8")):
            words = arguments_in(line)
            if words is not None:
                found.append(Typed(page, line, tuple(words)))
    return found


def arguments_in(line: str) -> list[str] | None:
    """Return the arguments of `graphrag-ray` in a command line, or None if it calls something else."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if words[:3] == ["ray", "job", "submit"] and "--" in words:
        words = words[words.index("--") + 1 :]
    while words and _ENVIRONMENT.match(words[0]):
        words = words[1:]
    if "<" in words:
        words = words[: words.index("<")]
    if words[:1] == ["graphrag-ray"]:
        return words[1:]
    if words[:3] == ["python", "-m", "graphrag_ray"]:
        return words[3:]
    if len(words) > 1 and words[0] == "python":
        for script, command in JOBS.items():
            if words[1].endswith(script):
                return [*command, *words[2:]]
    return None
