"""Everything on object storage: INPUT and index on a real S3 server (see s3_server.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import toy_model
from endpoint import Answer
from s3_proxy import S3Proxy
from s3_server import BUCKET, S3Server
from served import Served, until
from world import TOWN, Command, World, everything, model_options

from graphrag_ray import open_index
from graphrag_ray.base.connection_settings import Storage
from graphrag_ray.base.errors import StoreError
from graphrag_ray.indexing.stages import document_parts
from graphrag_ray.query.ask import Index
from graphrag_ray.store import files, remote_files
from graphrag_ray.store.files import Store

QUESTION = "What are the THEMES?"
IN_FLIGHT = 4


class Cloud:
    """A prefix in the bucket.

    `docs` and `index` are URLs; `local` is a world with the same documents and model.
    """

    def __init__(self, server: S3Server, local: World) -> None:
        self.server, self.local = server, local
        self.at = f"{BUCKET}/{uuid.uuid4().hex[:12]}"
        self.docs, self.index = f"s3://{self.at}/docs", f"s3://{self.at}/index"

    def write(self, texts: Mapping[str, str]) -> None:
        self.local.write(texts)
        for name, text in texts.items():
            self.server.files().pipe_file(f"{self.at}/docs/{name}", text.encode())

    def reached(self, address: str | None = None) -> list[str]:
        return ["--set", f"storage.endpoint_url={address or self.server.address}"]

    def index_command(self, *more: object) -> list[object]:
        """Without storage settings."""
        return ["index", self.docs, "--root", self.index, *options(self.local), *more]

    def open(self, address: str | None = None) -> Index:
        return open_index(self.index, storage={"endpoint_url": address or self.server.address})

    def expected(self) -> dict[str, list[dict[str, object]]]:
        """The tables of an index in a local folder. Calls the model."""
        self.local.index(embeddings={"enabled": False})
        return tables(self.local.open())


def options(world: World) -> list[str]:
    return [*model_options(world), "--set", "embeddings.enabled=false"]


def tables(opened: Index) -> dict[str, list[dict[str, object]]]:
    """All rows, without the date on which they were written."""
    found = everything(opened)
    return {name: [{k: v for k, v in row.items() if k != "period"} for row in found[name]] for name in found}


@pytest.fixture
def cloud(s3_owner: S3Server, world: World) -> Cloud:
    return Cloud(s3_owner, world)


@pytest.fixture
def proxy(s3_owner: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(remote_files, "_INPUT_ATTEMPTS", 2)
    with S3Proxy(s3_owner.address) as running:
        yield running


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "graphrag_ray", *map(str, arguments)]


def in_a_process(*arguments: object) -> str:
    """The output of a command that runs with Ray in a process of its own and must succeed."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def people(n: int) -> dict[str, str]:
    name = [f"{chr(65 + i // 26)}{chr(65 + i % 26)}X" for i in range(n + 1)]
    return {f"{i:02}.txt": f"{name[i]} wrote to {name[i + 1]} in year {i}." for i in range(n)}


# Whole runs with their own Ray


on_a_real_server = pytest.mark.skipif(
    "GRAPHRAG_RAY_TEST_S3" not in os.environ, reason="two minutes, on a real server: make test-cluster"
)


@on_a_real_server
@pytest.mark.timeout(600)
def test_an_index_on_object_storage_is_built_queried_and_not_rewritten(cloud: Cloud):
    cloud.write(TOWN)
    expected = cloud.expected()
    asked = cloud.local.asked()
    told = json.loads(in_a_process(*cloud.index_command("--json", *cloud.reached())))
    assert told["committed"] and told["counts"]["documents"] == len(TOWN)
    assert tables(cloud.open()) == expected
    assert cloud.local.asked() == 2 * asked
    again = json.loads(in_a_process("index", cloud.docs, "--root", cloud.index, "--json", *cloud.reached()))
    assert not again["committed"] and cloud.local.asked() == 2 * asked
    answer = json.loads(in_a_process("query", QUESTION, "--root", cloud.index, "--json", *cloud.reached()))
    assert answer["found"] and answer["sources"]


@on_a_real_server
@pytest.mark.timeout(600)
def test_a_killed_driver_pays_twice_only_for_the_last_seconds(cloud: Cloud):
    cloud.write(people(60))
    cloud.local.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.2)
    slowly = ["--max-in-flight", IN_FLIGHT, *cloud.reached()]
    null = subprocess.DEVNULL
    driver = subprocess.Popen(command(*cloud.index_command(*slowly)), stdout=null, stderr=null)
    end = time.monotonic() + 300
    while cloud.local.asked() < 50 and time.monotonic() < end and driver.poll() is None:
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    killed = time.monotonic()
    paid = cloud.local.asked()
    assert 50 <= paid < 120, "in the middle of extraction"
    with pytest.raises(Exception, match="is incomplete"):
        cloud.open()
    cloud.local.endpoint.respond = toy_model.respond
    told = json.loads(in_a_process(*cloud.index_command("--json", *slowly)))
    assert told["counts"]["documents"] == 60 and told["counts"]["failures"] == 0
    first: dict[str, float] = {}
    twice = []
    for request in cloud.local.endpoint.requests:
        body = json.dumps(request.body, sort_keys=True)
        if body in first:
            twice.append(first[body])
        first.setdefault(body, request.at)
    assert all(at > killed - 5 for at in twice), "in flight, or not yet journalled"
    assert len(twice) < paid


# Addresses and permissions


def test_the_environment_is_sufficient_and_questions_only_read(
    run: Command, cloud: Cloud, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.server.address)
    cloud.write(TOWN)
    assert run(*cloud.index_command()).exit_code == 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
    monkeypatch.setattr(files, "_open_backends", {})  # Open connections go to the server itself.
    for asked in (["query", QUESTION, "--sources"], ["status"], ["failures"], ["estimate", cloud.docs]):
        proxy.seen.clear()
        result = run(*asked, "--root", cloud.index)
        assert result.exit_code == 0, result.output
        assert {s.method for s in proxy.seen} in ({"GET"}, {"GET", "HEAD"})


def test_every_command_uses_the_storage_settings_of_a_file(run: Command, cloud: Cloud, tmp_path: Path):
    cloud.write(TOWN)
    config = tmp_path / "s.yaml"
    config.write_text(f"storage: {{endpoint_url: '{cloud.server.address}', path_style: true}}\n")
    assert run(*cloud.index_command("--config", config)).exit_code == 0
    for asked in (["query", QUESTION], ["status"], ["failures"], ["estimate", cloud.docs]):
        result = run(*asked, "--root", cloud.index, "--config", config)
        assert result.exit_code == 0, result.output
    kept = cloud.open().store.read("snapshots/1.json").decode()
    assert cloud.server.address not in kept, "it is about this machine, not about the index"


def test_input_on_another_server_has_its_own_settings(run: Command, cloud: Cloud, proxy: S3Proxy):
    cloud.write(TOWN)
    elsewhere = ["--set", f"input.storage.endpoint_url={proxy.address}"]
    assert run(*cloud.index_command(*cloud.reached(), *elsewhere)).exit_code == 0
    read = [s for s in proxy.seen if s.kind == "GET"]
    assert len(read) == len(TOWN), "one request for each small file"
    assert all("/docs/" in s.path for s in read)
    assert {s.method for s in proxy.seen} <= {"GET", "HEAD"}


def test_input_on_object_storage_can_be_indexed_in_a_local_folder(run: Command, cloud: Cloud, tmp_path: Path):
    cloud.write(TOWN)
    root = tmp_path / "here"
    given = [*options(cloud.local), *cloud.reached()]
    assert run("index", f"{cloud.docs}/*.txt", "--root", root, *given).exit_code == 0
    assert open_index(str(root)).manifest.counts["documents"] == len(TOWN)


def test_the_same_process_sees_a_new_document(run: Command, cloud: Cloud):
    cloud.write(TOWN)
    assert run(*cloud.index_command(*cloud.reached())).exit_code == 0
    cloud.write({"zoo.txt": "ZOE feeds YURI."})
    assert run(*cloud.index_command(*cloud.reached())).exit_code == 0
    assert cloud.open().manifest.counts["added"] == 1


def test_only_objects_with_a_changed_etag_are_read(
    run: Command, cloud: Cloud, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(document_parts, "split_bytes", lambda total: 1)
    cloud.write(TOWN)
    given = [*cloud.index_command(*cloud.reached()), "--set", f"input.storage.endpoint_url={proxy.address}"]
    assert run(*given).exit_code == 0

    def read_again() -> int:
        proxy.seen.clear()
        assert run(*given).exit_code == 0
        return sum(s.kind == "GET" and "/docs/" in s.path for s in proxy.seen)

    assert read_again() == 0
    put_in_pieces(cloud.server, f"{cloud.at}/docs/mill.txt", TOWN["mill.txt"])
    assert read_again() == 1
    assert cloud.open().manifest.number == 1
    cloud.write({"mill.txt": "GRACE sold the mill."})
    assert read_again() == 1
    assert cloud.open().manifest.counts["changed"] == 1


def put_in_pieces(server: S3Server, path: str, text: str) -> None:
    """Upload in parts, as tools do for large files; the ETag is then no hash of the content."""
    files, (bucket, _, key) = server.files(), path.partition("/")
    before = files.info(path)["ETag"]
    of = {"Bucket": bucket, "Key": key}
    of["UploadId"] = files.call_s3("create_multipart_upload", **of)["UploadId"]
    piece = files.call_s3("upload_part", PartNumber=1, Body=text.encode(), **of)
    files.call_s3(
        "complete_multipart_upload",
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": piece["ETag"]}]},
        **of,
    )
    assert files.cat_file(path) == text.encode() and files.info(path, refresh=True)["ETag"] != before


def test_read_only_credentials_can_query_but_not_write(
    run: Command, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
):
    cloud.write(TOWN)
    reader = cloud.server.reader()
    assert run(*cloud.index_command(*cloud.reached())).exit_code == 0
    for name, value in reader.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(files, "_open_backends", {})  # Open connections have the owner's keys.
    with pytest.raises(StoreError, match="check the permissions"):
        cloud.open().store.write("x", b"")
    for asked in (["query", QUESTION, "--sources"], ["status"], ["failures"], ["estimate", cloud.docs]):
        result = run(*asked, "--root", cloud.index, *cloud.reached())
        assert result.exit_code == 0, result.output
    assert cloud.open().ask(QUESTION).found
    cloud.server.files().pipe_file(f"{cloud.at}/docs/zoo.txt", b"ZOE feeds YURI.")
    asked_before = cloud.local.asked()
    result = run(*cloud.index_command(*cloud.reached()))
    assert result.exit_code == 1 and cloud.local.asked() == asked_before
    assert f"Cannot create {cloud.index}/locks/2.json: access denied" in result.stderr
    assert "check the permissions and credentials there" in result.stderr


@pytest.mark.parametrize("what", ["index", "query", "status", "failures", "estimate"])
def test_wrong_keys_are_an_error_and_not_an_empty_index(
    run: Command, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, what: str
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    if cloud.server.ceph is None:
        pytest.skip("this server takes any keys (Ceph's takes only its own)")
    arguments = {"index": [cloud.docs], "query": [QUESTION], "estimate": [cloud.docs]}.get(what, [])
    result = run(what, *arguments, "--root", cloud.index, *cloud.reached())
    assert result.exit_code == 1 and re.search(f"annot (read|list) {cloud.index}", result.stderr)
    assert "check the permissions and credentials there" in result.stderr


def test_an_unreachable_server_is_reported(run: Command, cloud: Cloud, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(remote_files, "_INPUT_ATTEMPTS", 1)
    nobody = cloud.reached("http://127.0.0.1:9")
    result = run("status", "--root", cloud.index, *nobody)
    assert result.exit_code == 1 and "http://127.0.0.1:9" in result.stderr
    result = run("index", cloud.docs, "--root", cloud.local.root, *options(cloud.local), *nobody)
    assert result.exit_code == 2 and f"Cannot list INPUT '{cloud.docs}'" in result.stderr


# Transient faults


def test_transient_faults_do_not_change_the_index(run: Command, cloud: Cloud, proxy: S3Proxy):
    cloud.write(TOWN)
    expected = cloud.expected()
    proxy.fail_at_random(7, 0.1, ("500", "503", "hang up", "lose the response"))
    result = run(*cloud.index_command(*cloud.reached(proxy.address)))
    assert result.exit_code == 0, result.output
    met = Counter(s.fault for s in proxy.seen)
    assert min(met[fault] for fault in ("500", "503", "hang up", "lose the response")) > 0
    assert tables(cloud.open()) == expected


def test_an_unreadable_object_is_a_failure(run: Command, cloud: Cloud, proxy: S3Proxy):
    cloud.write(TOWN)
    proxy.choose = lambda seen: "500" if seen.path.endswith("/mill.txt") else ""
    elsewhere = ["--set", f"input.storage.endpoint_url={proxy.address}"]
    result = run(*cloud.index_command(*cloud.reached(), *elsewhere))
    assert result.exit_code == 3, result.output
    shown = run("failures", "--root", cloud.index, *cloud.reached()).stdout
    assert "read: mill.txt" in shown and "cannot be read" in shown


def test_python_accepts_storage_as_a_section_or_as_values(run: Command, cloud: Cloud):
    import graphrag_ray

    cloud.write(TOWN)
    storage = {"endpoint_url": cloud.server.address}
    settings = cloud.local.settings(embeddings={"enabled": False})
    done = graphrag_ray.build_index(cloud.docs, cloud.index, settings=settings, storage=storage)
    assert done.committed
    assert not graphrag_ray.build_index(cloud.docs, cloud.index, storage=Storage(**storage)).committed
    with_storage = settings.model_copy(update={"storage": Storage(**storage)})
    assert graphrag_ray.open_index(cloud.index, settings=with_storage).ask(QUESTION).found
    assert Store(cloud.index, storage).list("snapshots")


# Service


def test_a_service_follows_the_index_and_survives_storage_failures(
    run: Command, cloud: Cloud, proxy: S3Proxy
):
    cloud.write(TOWN)
    small = ("--set", "communities.pack_components_below=1", *cloud.reached())
    assert run(*cloud.index_command(*small)).exit_code == 0
    reached = (f"storage.endpoint_url={proxy.address}",)
    cache = f"s3://{cloud.at}/cache"
    served = Served(root=cloud.index, overrides=reached, cache=cache, follow_s=0.05)

    def problem() -> str:
        return str(served.client.get("/index").json()["problem"])

    try:
        assert served.ask(QUESTION).json()["snapshot"] == 1
        asked = cloud.local.asked()
        assert "Every reply came from the cache: no model was called." in served.ask(QUESTION).json()["notes"]
        assert cloud.local.asked() == asked
        cloud.write({"zoo.txt": "ZOE feeds YURI."})
        assert run(*cloud.index_command(*small)).exit_code == 0
        until(lambda: served.client.get("/healthz").json()["snapshot"] == 2)
        # No further question is accepted. Answers that are paid for are still given.
        proxy.choose = lambda seen: "503" if seen.method == "PUT" else ""
        assert "ZOE" in served.ask("What about YURI ?").json()["text"]
        # A reply is written within seconds, so the failure may be reported by a later answer.
        until(lambda: "could not be cached" in " ".join(served.ask(QUESTION).json()["notes"]))
        # After the index is removed, what was already read can still be used, and the rest is reported.
        proxy.choose = lambda seen: "hang up"
        until(lambda: "annot" in problem())
        assert served.ask(QUESTION, budget_tokens=100_000).status_code == 200
        lost = served.ask(QUESTION, method="text")
        assert lost.status_code == 503 and lost.json()["error"]["code"] == "index_unreadable"
        assert served.client.get("/healthz").status_code == 200
        proxy.choose = lambda seen: ""
        until(lambda: problem() == "")
        assert served.ask(QUESTION, method="text").status_code == 200
    finally:
        served.close()
