"""Both jobs, submitted to a real cluster of two nodes with all data in object storage: what is shipped, how
a run is observed, how every ending is reported, and where keys are absent. Clusters and jobs are started
and watched with the commands of the README."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killing
import pyarrow.parquet as pq
import pytest
import toy_model
import yaml
from click.testing import CliRunner
from documents import ON_A_CLUSTER
from endpoint import Answer, Endpoint
from s3_server import BUCKET, S3Server
from world import REJECTED, TOWN

from graphrag_ray.cli.command_line import main

pytestmark = pytest.mark.cluster

_, HEAD, OTHER, SUBMIT, WATCH = ON_A_CLUSTER
REPOSITORY = Path(__file__).parents[2]
VARIABLE = "GRAPHRAG_TEST_KEY_OF_NODES"
OURS = "this is no shipped code"
"""What the nodes' own graphrag_ray says when it is imported."""


def people(n: int) -> dict[str, str]:
    name = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(n + 1)]
    return {f"{i:02}.txt": f"{name[i]} wrote to {name[i + 1]} in year {i}." for i in range(n)}


ENDED = """
import json, sys, time
from ray.job_submission import JobSubmissionClient
client, until = JobSubmissionClient(sys.argv[1]), time.monotonic() + 150
for job in sys.argv[2:]:
    while not (info := client.get_job_info(job)).status.is_terminal():
        assert time.monotonic() < until, f"{job} does not end"
        time.sleep(0.3)
    told = {"status": info.status.value, "exit_code": info.driver_exit_code, "log": client.get_job_logs(job)}
    print(json.dumps(told))
"""


class Site:
    """A cluster whose nodes have the keys, and a prefix in a bucket for its jobs."""

    def __init__(
        self, cluster: killing.Cluster, server: S3Server, endpoint: Endpoint, dashboard: str
    ) -> None:
        self.cluster, self.server, self.endpoint, self.dashboard = cluster, server, endpoint, dashboard
        self.at = f"{BUCKET}/{uuid.uuid4().hex[:12]}"
        self.printed: list[str] = []
        given = {"base_url": endpoint.base_url, "api_key_env": VARIABLE, "max_in_flight": 4}
        self.model = {"provider": "openai", "model": "m", "endpoints": [given]}

    def write(self, path: str, text: str) -> str:
        self.server.files().pipe_file(f"{self.at}/{path}", text.encode())
        return f"s3://{self.at}/{path}"

    def project(self, name: str, texts: dict[str, str], **changes: Any) -> str:
        """Write a settings file that names documents and index, next to them. Returns its URL."""
        for file, text in texts.items():
            self.write(f"{name}/docs/{file}", text)
        run = {"journal_flush_s": 0.2, "workers_per_node": 1}
        settings = {"root": "index", "input": {"url": "docs"}, "models": {"default": self.model}, "run": run}
        small = {"embeddings": {"enabled": False}}
        return self.write(f"{name}/settings.yaml", yaml.safe_dump(settings | small | changes))

    def submit(self, *line: str) -> str:
        """Run `ray job submit` for this checkout without waiting. Returns the name of the job."""
        name = f"job-{uuid.uuid4().hex[:8]}"
        words = shlex.split(SUBMIT.replace("http://127.0.0.1:8265", self.dashboard))
        options = ["--submission-id", name, *words[3 : words.index("python")]]
        # fmt: off
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", *options, "python", *line],
            env=self.cluster.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False,
        )
        # fmt: on
        self.printed.append(done.stdout + done.stderr)
        assert "submitted successfully" in done.stdout, done.stdout + done.stderr
        return name

    def ended(self, *jobs: str) -> list[tuple[str, int]]:
        """Wait for all jobs, and return their status and exit code; logs are stored.

        It runs in its own process, because Ray keeps the first token that a process shows.
        """
        done = subprocess.run(
            [sys.executable, "-c", ENDED, self.dashboard, *jobs],
            env=self.cluster.env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        self.printed += [info["log"] for info in told]
        return [(info["status"], info["exit_code"]) for info in told]


def status(config: str) -> dict[str, Any]:
    """`graphrag-ray status --json`, which has no access to the cluster."""
    done = CliRunner().invoke(main, ["status", "--config", config, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def site(s3_owner: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_owner.address)
    key = f"sk-{uuid.uuid4().hex}"
    theirs = tmp_path / "theirs" / "graphrag_ray"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text(f"raise ImportError({OURS!r})")
    of_nodes = {
        VARIABLE: key,
        "PYTHONPATH": str(theirs.parent),
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
    }
    with Endpoint(respond=toy_model.respond, key=key) as endpoint, killing.cluster(of_nodes) as cluster:
        port = killing.free_port()
        served = ["--include-dashboard=true", f"--dashboard-port={port}"]
        cluster.start_node("--node-name=head", "--num-cpus=1", *served, *shlex.split(HEAD)[2:])
        # Two nodes on one machine would unpack the shipped files into the same folder.
        apart = ["--num-cpus=1", f"--temp-dir={cluster.folder / 'other'}"]
        joins = shlex.split(OTHER.replace("FIRST:6379", cluster.address))[2:]
        cluster.start_node("--node-name=other", *apart, *joins)
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            monkeypatch.setenv(name, cluster.env[name])
        cluster.env.pop(VARIABLE)
        yield Site(cluster, s3_owner, endpoint, f"http://127.0.0.1:{port}")


@pytest.mark.timeout(480)
def test_jobs_can_be_followed_to_their_end_with_the_index_alone(site: Site):
    site.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.5)
    good = site.project("good", people(24))
    # A slow job, watched by an observer with access to the index only.
    long = site.submit("jobs/index.py", "--config", good)
    wrong = site.submit("jobs/index.py", "--config", site.project("wrong", TOWN, chunking={"sise": 300}))
    watch = shlex.split(WATCH.replace("s3://bucket", f"s3://{site.at}/good"))
    watching = CliRunner().invoke(main, [*watch[1:], "--json"])
    seen = [json.loads(line) for line in watching.stdout.splitlines()]
    paces = [s["reached"]["pace"] for s in seen if s["outcome"] == "running" and s["reached"]]
    of_extract = [p for p in paces if p and p["stage"] == "extract"]
    assert of_extract, (watching.stdout, watching.stderr, site.ended(long))
    assert of_extract[0]["total"] == 24 and any(p["in_flight"] > 0 for p in of_extract)
    assert all(p["items_per_minute"] > 0 < p["tokens_per_minute"] for p in of_extract if p["done"])
    assert watching.exit_code == 0 and seen[-1]["outcome"] == "committed", watching.stderr
    last = status(good)["last_run"]
    assert (last["exit_meaning"], last["snapshot"], last["failed"]) == ("done", 1, 0)
    assert last["reached"] is None and sum(u["calls"] for u in last["usage"]) == len(site.endpoint.bodies())
    files = site.server.files()
    assert not [p for p in files.find(f"{site.at}/good/index/runs") if "live" in p]

    # Jobs with other endings.
    site.endpoint.respond = lambda body: (
        REJECTED if "bridge" in body["messages"][-1]["content"] else toy_model.respond(body)
    )
    questions = site.write("questions.csv", "question\nWhat about AAX ?\nWhat about the bridge ?\n")
    answers = f"{site.at}/answers.parquet"
    asking = site.submit("jobs/query.py", "--config", good, "--batch", questions, "--out", f"s3://{answers}")
    assert site.ended(long, wrong, asking) == [("SUCCEEDED", 0), ("FAILED", 2), ("FAILED", 3)]
    found = status(f"s3://{site.at}/wrong/settings.yaml")
    assert found["last_run"] is None and found["refused"]["exit_code"] == 2
    assert "'chunking.sise'; did you mean" in found["refused"]["message"]
    with files.open(answers) as file:
        rows = pq.read_table(file).to_pylist()
    assert [bool(r["failed_parts"]) for r in rows] == [False, True]
    told = json.loads(files.cat_file(f"{answers}.work/outcome.json"))
    assert (told["exit_code"], told["failed"], told["snapshot"]) == (3, 1, 1)
    assert told["exit_meaning"] == "done, but some items failed"

    # Only the needed code was shipped, and the key is nowhere.
    folder = site.cluster.folder
    resources = folder / "session_latest/runtime_resources/working_dir_files"
    for package in resources.glob("_ray_pkg_*/"):
        shipped = {path.name for path in package.iterdir()}
        assert {"graphrag_ray", "jobs", "prompts"} <= shipped
        assert shipped.isdisjoint({"tests", "benchmarks", ".git", ".venv", "docs", "cluster"})
        assert sum(p.stat().st_size for p in package.rglob("*.*") if "__pycache__" not in p.parts) < 8_000_000
    assert OURS not in "".join(site.printed)
    key = str(site.endpoint.key)
    assert key not in "".join(site.printed) and key not in watching.stdout + watching.stderr
    logs = [p for p in folder.rglob("*") if p.is_file() and "runtime_resources" not in p.parts]
    assert [p for p in logs if "job-driver" in p.name] and [p for p in logs if p.name.startswith("worker")]
    assert [p for p in logs if key.encode() in p.read_bytes()] == []
    assert [p for p in files.find(site.at) if key.encode() in files.cat_file(p)] == []
