"""Commands in the fenced blocks of this repository's Markdown pages."""

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
    """A command line of a page. `words` are the arguments of `graphrag-ray`."""

    page: Path
    line: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(TOP)}: {self.line}"


def blocks(text: str, languages: set[str]) -> Iterator[str]:
    """The fenced blocks in one of these languages ("": without a language)."""
    for indent, language, body in _FENCE.findall(text):
        if language in languages:
            yield re.sub(f"^{indent}", "", body, flags=re.MULTILINE)


def shell_lines(text: str) -> Iterator[str]:
    """Command lines without prompts and comments, with continuation lines joined."""
    for block in blocks(text, SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s+#\s.*$", "", line.removeprefix("$ ")).strip()


def command_lines(text: str) -> Iterator[str]:
    """The command lines of a page: those after a prompt if there are prompts, because other lines are
    output."""
    for block in blocks(text, SHELL):
        lines = [*shell_lines(f"```\n{block}```\n")]
        prompted = [line.startswith("$ ") for line in block.replace("\\\n", " ").splitlines()]
        yield from (
            line for line, said in zip(lines, prompted, strict=True) if line and said >= any(prompted)
        )


ON_A_CLUSTER = [
    line
    for line in command_lines((TOP / "README.md").read_text("utf-8"))
    if line.startswith(("export RAY", "ray ", "graphrag-ray status --root s3"))
]
"""Of the README: the token, a node, another node, a job, and how it is watched."""


def typed() -> list[Typed]:
    """Every call of `graphrag-ray` or of one of its jobs in any page."""
    found = []
    for page in PAGES:
        for line in shell_lines(page.read_text("utf-8")):
            words = arguments_in(line)
            if words is not None:
                found.append(Typed(page, line, tuple(words)))
    return found


def arguments_in(line: str) -> list[str] | None:
    """The arguments of `graphrag-ray` in a command line, or None if it does not call it."""
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
