"""Run every command line of the README and of related pages unchanged, on small data: with object storage, a
model behind HTTP and the service. `test_jobs.py` runs those that need a cluster. Commands run in this
process, in the reader's folder and environment."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import killing
import pytest
import toy_model
from documents import ON_A_CLUSTER, TOP, command_lines
from endpoint import Endpoint
from s3_server import BUCKET, S3Server
from served import until
from world import TOWN, Command

READ = ("guides/documents", "guides/questions", "guides/inspect-and-export", "guides/storage")
PAGES = [TOP / "README.md", *(TOP / "docs" / f"{name}.md" for name in READ)]
LINES = [
    line
    for line in dict.fromkeys(line for page in PAGES for line in command_lines(page.read_text("utf-8")))
    if line not in ON_A_CLUSTER
]
DEMO = ("31-council-minutes-2019-03.md", "12-storm-aldith.txt", "44-courier-notices.jsonl")
WITHIN_S = 240

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        "GRAPHRAG_RAY_TEST_README" not in os.environ, reason="takes minutes: set GRAPHRAG_RAY_TEST_README=1"
    ),
]


class Reader:
    """Follows the README in a separate folder.

    Attributes:
        filled_in: Values by placeholder.
    """

    def __init__(self, folder: Path, s3: S3Server, endpoint: Endpoint, command: Command) -> None:
        self.folder, self.command = folder, command
        self.at = f"{BUCKET}/{uuid.uuid4().hex[:12]}"
        self.port = killing.free_port()
        self.filled_in = {
            "OPENAI_API_KEY=…": f"OPENAI_API_KEY={endpoint.key}",
            "AWS_ACCESS_KEY_ID=…": f"AWS_ACCESS_KEY_ID={s3.owner.access}",
            "AWS_SECRET_ACCESS_KEY=…": f"AWS_SECRET_ACCESS_KEY={s3.owner.secret}",
            "http://127.0.0.1:9000": s3.address,
            "http://127.0.0.1:8000": f"http://127.0.0.1:{self.port}",
            # A fixed port could belong to another service, and the real model costs money.
            "graphrag-ray serve": f"graphrag-ray serve --port {self.port}",
            "--model gpt-4o-mini": f"--model gpt-4o-mini --base-url {endpoint.base_url}",
        }
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))
        }
        self.env |= {
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
            "RAY_USAGE_STATS_ENABLED": "0",
            **s3.owner.environment,
            "AWS_ENDPOINT_URL": s3.address,
        }
        self.serving: subprocess.Popen[str] | None = None
        self._write(s3)

    def _write(self, s3: S3Server) -> None:
        """Write documents into the folder and the bucket, and copy a part of the demo corpus."""
        for name in DEMO:
            for folder in ("documents", "demo/corpus"):
                (self.folder / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(TOP / "demo" / "corpus" / name, self.folder / folder / name)
        for name, text in TOWN.items():
            (self.folder / "documents" / name).write_text(text)
            s3.files().pipe_file(f"{self.at}/documents/{name}", text.encode())
        (self.folder / "questions.csv").write_text("question\nWho opposed the harbour?\n")

    def type(self, line: str) -> str:
        """Run a line and return its output. Unknown programs raise KeyError."""
        words = shlex.split(self.fill_in(line))
        return {
            "git": self._clone,
            ".": self._activate,
            "export": self._export,
            "pip": self._pip,
            "make": self._make,
            "graphrag-ray": self._ours,
            "curl": self._run,
        }[words[0]](words)

    def fill_in(self, line: str) -> str:
        line = line.replace("s3://bucket", f"s3://{self.at}")
        for placeholder, value in self.filled_in.items():
            line = line.replace(placeholder, value)
        assert "…" not in line, f"{line}: add the placeholder to `filled_in`"
        return line

    def _export(self, words: list[str]) -> str:
        self.env |= dict(word.split("=", 1) for word in words[1:])
        return ""

    def _clone(self, words: list[str]) -> str:
        """Check only that the cloned folder is the one entered."""
        assert words == ["git", "clone", "URL", words[3], "&&", "cd", words[3]]
        return ""

    def _activate(self, words: list[str]) -> str:
        """Check only that `make install` creates this environment. PATH already has its programs."""
        assert words[1:] == [".venv/bin/activate"] and "VENV ?= .venv" in (TOP / "Makefile").read_text(
            "utf-8"
        )
        return ""

    def _pip(self, words: list[str]) -> str:
        """Check only that the extras exist. `make install` and CI install them."""
        (named,) = [word for word in words[2:] if not word.startswith("-") and word != "constraints.txt"]
        extras = re.findall(r"\w+", named.removeprefix("."))
        project = (TOP / "pyproject.toml").read_text("utf-8")
        assert named.startswith(".") and all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
        assert (TOP / "constraints.txt").is_file()
        return ""

    def _make(self, words: list[str]) -> str:
        options = ["-f", str(TOP / "Makefile"), "-o", "install", f"BIN={os.path.dirname(sys.executable)}"]
        return self._run(["make", *options, *words[1:]])

    def _ours(self, words: list[str]) -> str:
        if words[1] != "serve":
            with patch.dict(os.environ, self.env, clear=True), contextlib.chdir(self.folder):
                result = self.command(*words[1:])
            assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}"
            return result.stdout
        log = self.folder / "serve.txt"
        self.serving = subprocess.Popen(
            words, env=self.env, cwd=self.folder, stdout=log.open("w"), stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        until(lambda: "Press Ctrl-C to stop" in log.read_text() or self.serving.poll() is not None)
        return log.read_text()

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        if self.serving is not None:
            killing.kill_sessions([self.serving.pid])
            self.serving.wait()


@pytest.fixture
def reader(s3: S3Server, tmp_path: Path, run: Command) -> Iterator[Reader]:
    key = f"sk-{uuid.uuid4().hex}"
    with Endpoint(respond=toy_model.respond, key=key) as endpoint:
        reader = Reader(tmp_path, s3, endpoint, run)
        yield reader
        reader.close()


EXPECTED: Mapping[str, str] = {
    "make demo": "Reports cited:",
    "graphrag-ray index": "is committed at",
    'graphrag-ray query "': " search, ",
    "graphrag-ray status": "snapshot 1 was committed",
    "graphrag-ray export": "Exported snapshot",
    "curl": '"references"',
}
"""Expected output by the start of a command line."""


def test_every_command_of_the_readme_runs(reader: Reader):
    for line in LINES:
        output = reader.type(line)
        expected = [words for start, words in EXPECTED.items() if line.startswith(start)]
        assert all(words in output for words in expected), (line, output)


def test_unknown_command_line_is_detected(reader: Reader):
    with pytest.raises(KeyError):
        reader.type("kubectl apply -f x.yaml")
    with pytest.raises(AssertionError, match="to `filled_in`"):
        reader.type("export SOME_KEY=…")
    assert len(LINES) >= 20
