"""Both jobs, submitted to a real cluster of two nodes, with everything in object storage: what is shipped,
how a run is seen from outside, how each ending is told, and where keys are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killing
import pyarrow.parquet as pq
import pytest
import toy_model
import yaml
from endpoint import Answer, Endpoint
from s3_server import BUCKET, S3Server
from world import REJECTED, TOWN

REPOSITORY = Path(__file__).parents[2]
VARIABLE = "GRAPHRAG_TEST_KEY_OF_NODES"
OURS = "this is no shipped code"
"""What the nodes' own graphrag_ray says when it is imported."""


def people(n: int) -> dict[str, str]:
    name = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(n + 1)]
    return {f"{i:02}.txt": f"{name[i]} wrote to {name[i + 1]} in year {i}." for i in range(n)}


class Site:
    """A cluster whose nodes hold the keys, and a corner of a bucket for its jobs."""

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
        """A settings file beside documents and index, which it names; its URL."""
        for file, text in texts.items():
            self.write(f"{name}/docs/{file}", text)
        run = {"flush_s": 0.2, "workers_per_node": 1}
        settings = {"root": "index", "input": {"url": "docs"}, "models": {"default": self.model}, "run": run}
        small = {"embeddings": {"enabled": False}}
        return self.write(f"{name}/settings.yaml", yaml.safe_dump(settings | small | changes))

    def submit(self, *line: str, wait: bool = True) -> str:
        """`ray job submit` of this checkout; the name of the job."""
        name = f"job-{uuid.uuid4().hex[:8]}"
        options = ["--address", self.dashboard, "--working-dir", ".", "--submission-id", name]
        self._ray("submit", *options, *([] if wait else ["--no-wait"]), "--", "python", *line)
        return name

    def ended(self, name: str) -> dict[str, Any]:
        """What the job server says of a job, once it is over; its log is kept."""
        import ray  # noqa: F401
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(self.dashboard)
        until = time.monotonic() + 120
        while not (info := client.get_job_info(name)).status.is_terminal():
            assert time.monotonic() < until, f"{name} does not end: {client.get_job_logs(name)}"
            time.sleep(0.3)
        log = client.get_job_logs(name)
        self.printed.append(log)
        return {"status": str(info.status), "exit_code": info.driver_exit_code, "log": log}

    def status(self, config: str) -> dict[str, Any]:
        """`graphrag-ray status --json`, without access to the cluster."""
        done = subprocess.run(
            status_command(config, "--json"), capture_output=True, text=True, check=True, timeout=120
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _ray(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", *arguments]
        done = subprocess.run(
            command,
            env=self.cluster.env,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        self.printed.append(done.stdout + done.stderr)
        assert "submitted successfully" in done.stdout, done.stdout + done.stderr


def status_command(config: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "graphrag_ray", "status", "--config", config, *more]


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
        cluster.start_node("--node-name=head", "--num-cpus=1", *served)
        # Two nodes of one machine would unpack what is shipped into the same folder, one over the other's.
        cluster.start_node("--node-name=other", "--num-cpus=1", f"--temp-dir={cluster.folder / 'other'}")
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            monkeypatch.setenv(name, cluster.env[name])
        cluster.env.pop(VARIABLE)
        yield Site(cluster, s3_owner, endpoint, f"http://127.0.0.1:{port}")


@pytest.mark.timeout(480)
def test_jobs_on_a_cluster_are_followed_and_their_ends_told_by_the_index_alone(site: Site, tmp_path: Path):
    site.endpoint.respond = lambda body: (
        REJECTED
        if "bridge" in body["messages"][-1]["content"]
        else Answer(toy_model.respond(body), delay_s=0.5)
    )
    good = site.project("good", people(40))
    # One that is slow, watched by somebody who knows the index alone.
    long = site.submit("jobs/index.py", "--config", good, wait=False)
    until = time.monotonic() + 90
    while not site.endpoint.requests and time.monotonic() < until:
        time.sleep(0.1)
    watching = subprocess.run(
        status_command(good, "--watch", "--json"), capture_output=True, text=True, timeout=180, check=False
    )
    seen = [json.loads(line) for line in watching.stdout.splitlines()]
    paces = [s["reached"]["pace"] for s in seen if s["outcome"] == "running" and s["reached"]]
    of_extract = [p for p in paces if p and p["stage"] == "extract"]
    assert of_extract, (watching.stdout, watching.stderr, site.ended(long))
    assert of_extract[0]["total"] == 40 and of_extract[0]["in_flight"] > 0
    assert all(p["items_per_minute"] > 0 < p["tokens_per_minute"] for p in of_extract if p["done"])
    assert watching.returncode == 0 and seen[-1]["outcome"] == "committed", watching.stderr
    assert site.ended(long) | {"log": ""} == {"status": "SUCCEEDED", "exit_code": 0, "log": ""}
    last = site.status(good)["last_run"]
    assert (last["exit_meaning"], last["snapshot"], last["failed"]) == ("done", 1, 0)
    assert last["reached"] is None and sum(u["calls"] for u in last["usage"]) == len(site.endpoint.bodies())
    assert not [p for p in site.server.files().find(f"{site.at}/good/index/runs") if "live" in p]

    # Those that end otherwise, side by side.
    site.endpoint.respond = lambda body: (
        REJECTED if "bridge" in body["messages"][-1]["content"] else toy_model.respond(body)
    )
    some_fail = site.project("some_fail", TOWN)
    poor = site.project("poor", people(60), budget={"max_total_tokens": 30_000})
    wrong = site.project("wrong", TOWN, chunking={"sise": 300})
    questions = site.write("questions.csv", "id,question\n1,What about AAX ?\n2,What about ABX ?\n")
    answers = f"s3://{site.at}/answers.parquet"
    jobs = {
        config: site.submit("jobs/index.py", "--config", config, wait=False)
        for config in (wrong, some_fail, poor)
    }
    asking = site.submit("jobs/query.py", "--config", good, "--batch", questions, "--out", answers)
    assert site.ended(asking)["exit_code"] == 0
    with site.server.files().open(answers) as file:
        rows = pq.read_table(file).to_pylist()
    assert [r["question_id"] for r in rows] == ["1", "2"] and all(r["text"] for r in rows)
    codes = {wrong: 2, some_fail: 3, poor: 4}
    assert {c: site.ended(job)["exit_code"] for c, job in jobs.items()} == codes
    found = {config: site.status(config) for config in jobs}
    told = {config: found[config]["last_run"] or found[config]["refused"] for config in jobs}
    assert {config: t["exit_code"] for config, t in told.items()} == codes
    assert told[some_fail]["failed"] == 1 and told[some_fail]["snapshot"] == 1
    assert told[poor]["outcome"] == "budget" and told[poor]["reached"]["step"] == "extract"
    assert found[wrong]["last_run"] is None and "'chunking.sise'; did you mean" in told[wrong]["message"]

    # The code is what was shipped, and no more than it needs; the key is nowhere.
    folder = site.cluster.folder
    (package,) = (folder / "session_latest/runtime_resources/working_dir_files").glob("_ray_pkg_*/")
    shipped = {path.name for path in package.iterdir()}
    assert {"graphrag_ray", "jobs", "prompts"} <= shipped
    assert shipped.isdisjoint({"tests", "benchmarks", ".git", ".venv", "docs", "cluster"})
    assert sum(p.stat().st_size for p in package.rglob("*") if p.is_file()) < 8_000_000
    assert OURS not in "".join(site.printed)
    key = str(site.endpoint.key)
    assert key not in "".join(site.printed) and key not in watching.stdout + watching.stderr
    logs = [p for p in folder.rglob("*") if p.is_file() and "runtime_resources" not in p.parts]
    assert [p for p in logs if "job-driver" in p.name] and [p for p in logs if p.name.startswith("worker")]
    assert [p for p in logs if key.encode() in p.read_bytes()] == []
    stored = site.server.files()
    assert [p for p in stored.find(site.at) if key.encode() in stored.cat_file(p)] == []
