"""Every command line of the README, typed as it stands there, on small data: `ray start` with its token,
jobs, object storage, a model behind HTTP, the service. What a reader fills in stands in one table."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import killing
import pytest
import toy_model
import yaml
from documents import TOP, command_lines
from endpoint import Endpoint
from s3_server import BUCKET, S3Server
from served import until
from world import TOWN

README = (TOP / "README.md").read_text("utf-8")
LINES = [*dict.fromkeys(command_lines(README))]
DEMO = ("31-council-minutes-2019-03.md", "12-storm-aldith.txt", "44-courier-notices.jsonl")
WITHIN_S = 240

pytestmark = pytest.mark.skipif(
    "GRAPHRAG_RAY_TEST_README" not in os.environ, reason="takes minutes: set GRAPHRAG_RAY_TEST_README=1"
)


class Reader:
    """Somebody who follows the README, in a folder of their own.

    filled_in   what stands for something of theirs, and what that is
    """

    def __init__(self, folder: Path, s3: S3Server, endpoint: Endpoint, cluster: killing.Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.at = f"{BUCKET}/{uuid.uuid4().hex[:12]}"
        self.dashboard, self.port = killing.free_port(), killing.free_port()
        self.filled_in = {
            "OPENAI_API_KEY=…": f"OPENAI_API_KEY={endpoint.key}",
            "AWS_ACCESS_KEY_ID=…": f"AWS_ACCESS_KEY_ID={s3.owner.access}",
            "AWS_SECRET_ACCESS_KEY=…": f"AWS_SECRET_ACCESS_KEY={s3.owner.secret}",
            "RAY_AUTH_TOKEN=…": f"RAY_AUTH_TOKEN={uuid.uuid4().hex}{uuid.uuid4().hex}",
            "http://127.0.0.1:9000": s3.address,
            "http://127.0.0.1:8265": f"http://127.0.0.1:{self.dashboard}",
            "http://127.0.0.1:8000": f"http://127.0.0.1:{self.port}",
            "FIRST:6379": cluster.address,
            # Others would find a service at a port that is always the same, and a model that costs.
            "graphrag-ray serve": f"graphrag-ray serve --port {self.port}",
            "--model gpt-4o-mini": f"--model gpt-4o-mini --base-url {endpoint.base_url}",
            "--working-dir .": f"--working-dir {TOP}",
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
        self._write(s3, endpoint)

    def _write(self, s3: S3Server, endpoint: Endpoint) -> None:
        """Documents, here and in the bucket, the bundled corpus, and the settings of a job."""
        for name in DEMO:
            for folder in ("documents", "demo/corpus"):
                (self.folder / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(TOP / "demo" / "corpus" / name, self.folder / folder / name)
        for name, text in TOWN.items():
            (self.folder / "documents" / name).write_text(text)
            s3.files().pipe_file(f"{self.at}/documents/{name}", text.encode())
        given = {"base_url": endpoint.base_url, "max_in_flight": 4}
        settings = {
            "root": "job-index",
            "input": {"url": "documents"},
            "models": {"default": {"provider": "openai", "model": "m", "endpoints": [given]}},
            "embeddings": {"enabled": False},
        }
        s3.files().pipe_file(f"{self.at}/settings.yaml", yaml.safe_dump(settings).encode())

    def types(self, line: str) -> str:
        """What it says. Every program has its way here: a line of another one fails."""
        words = shlex.split(self.fill_in(line))
        return {
            "export": self._export,
            "pip": self._pip,
            "make": self._make,
            "ray": self._ray,
            "graphrag-ray": self._ours,
            "curl": self._run,
        }[words[0]](words)

    def fill_in(self, line: str) -> str:
        index = "job-index" if line.startswith("graphrag-ray status") else f"index-{'http' in line}"
        line = line.replace("s3://bucket/index", f"s3://{self.at}/{index}").replace(
            "s3://bucket", f"s3://{self.at}"
        )
        for stands, given in self.filled_in.items():
            line = line.replace(stands, given)
        assert "…" not in line, f"{line}: say in `filled_in` what stands here"
        return line

    def _export(self, words: list[str]) -> str:
        self.env |= dict(word.split("=", 1) for word in words[1:])
        return ""

    def _pip(self, words: list[str]) -> str:
        """Installing is what `make install` and CI do; here: that what is named is there."""
        (named,) = [word for word in words[2:] if not word.startswith("-") and word != "constraints.txt"]
        extras = re.findall(r"\w+", named.removeprefix("."))
        project = (TOP / "pyproject.toml").read_text("utf-8")
        assert named.startswith(".") and all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
        assert (TOP / "constraints.txt").is_file()
        return ""

    def _make(self, words: list[str]) -> str:
        # All tests run already; the environment is there.
        only_told = ["--dry-run"] if words[1] == "test" else []
        options = ["-f", str(TOP / "Makefile"), "-o", "install", f"BIN={os.path.dirname(sys.executable)}"]
        return self._run(["make", *only_told, *options, *words[1:]])

    def _ray(self, words: list[str]) -> str:
        if words[1] != "start":
            return self._run(words)
        # Ports of their own, and a process that ends with the test.
        self.cluster.env = dict(self.env)
        if "--head" in words:
            own = ["--include-dashboard=true", f"--dashboard-port={self.dashboard}"]
        else:
            own = [f"--temp-dir={self.cluster.folder / 'other'}"]
        self.cluster.start_node("--num-cpus=1", *own, *words[2:])
        return ""

    def _ours(self, words: list[str]) -> str:
        if words[1] != "serve":
            return self._run(words)
        alone = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        log = self.folder / "serve.txt"
        self.serving = subprocess.Popen(
            words, env=alone, cwd=self.folder, stdout=log.open("w"), stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        until(lambda: "Ctrl-C ends it" in log.read_text() or self.serving.poll() is not None)
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
def reader(s3: S3Server, tmp_path: Path) -> Iterator[Reader]:
    key = f"sk-{uuid.uuid4().hex}"
    with Endpoint(respond=toy_model.respond, key=key) as endpoint, killing.cluster() as cluster:
        reader = Reader(tmp_path, s3, endpoint, cluster)
        yield reader
        reader.close()


SAYS: Mapping[str, str] = {
    "make demo": "Reports cited:",
    "make test": "-m pytest",
    "graphrag-ray index": "is committed at",
    "graphrag-ray query": " search, ",
    "graphrag-ray status": "snapshot 1 was committed",
    "ray job submit": "submitted successfully",
    "curl": '"references"',
}
"""What is to be seen of a command that did what it is for."""


@pytest.mark.timeout(600)
def test_every_command_line_of_the_readme_runs(reader: Reader):
    # Whoever reads on has exported all keys before the cluster is started, whose jobs find them there.
    starting = [line for line in LINES if line.startswith(("export", "ray start"))]
    for line in starting:
        reader.types(line)
    # The runs before that section join the cluster too: a private one for each takes its seconds.
    reader.env["RAY_ADDRESS"] = reader.cluster.address
    for line in LINES:
        if line in starting:
            continue
        said = reader.types(line)
        expected = [words for start, words in SAYS.items() if line.startswith(start)]
        assert all(words in said for words in expected), (line, said)
    answer = json.loads(said)
    assert answer["snapshot"] == 1 and answer["text"]


def test_a_line_that_nobody_thought_of_is_noticed(reader: Reader):
    with pytest.raises(KeyError):
        reader.types("kubectl apply -f x.yaml")
    with pytest.raises(AssertionError, match="say in `filled_in`"):
        reader.types("export SOME_KEY=…")
    assert len(LINES) >= 18
