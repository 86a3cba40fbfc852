"""The store against a real S3 server over HTTP (`s3_server.py` chooses it)."""

import importlib.util
import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from s3_proxy import S3Proxy
from s3_server import BUCKET, S3Server

from graphrag_ray.base.errors import IndexNotFound, StoreError
from graphrag_ray.store import files, parts, remote_files, snapshots
from graphrag_ray.store.files import Store


def _contract_tests():
    path = Path(__file__).parents[1] / "unit" / "store" / "test_store_contract.py"
    spec = importlib.util.spec_from_file_location("store_contract_on_s3", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: test for name, test in vars(module).items() if name.startswith("test_")}


globals().update(_contract_tests())


@pytest.fixture
def endpoint(s3_owner: S3Server) -> str:
    return s3_owner.address


@pytest.fixture
def store(endpoint):
    return Store(f"s3://{BUCKET}/an index über Bäume {uuid.uuid4().hex[:8]}", {"endpoint_url": endpoint})


@pytest.fixture
def proxy(endpoint, monkeypatch):
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.001)
    with S3Proxy(endpoint) as running:
        yield running


@pytest.fixture
def proxied(proxy):
    return Store(f"s3://{BUCKET}/{uuid.uuid4().hex}", {"endpoint_url": proxy.address})


def test_listing_with_several_pages_is_complete(store, proxy):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: store.write(f"many/{i:04d}", b"x"), range(1005)))
    proxy.script[:] = [("GET", ""), ("GET", "503"), ("GET", "truncate the response")]
    proxied = Store(store.url, {"endpoint_url": proxy.address})
    assert [info.path for info in proxied.list("many")] == [f"many/{i:04d}" for i in range(1005)]
    assert proxy.faults("GET")[:3] == ["", "503", "truncate the response"]
    proxy.seen.clear()
    assert len(proxied.list("many")) == 1005
    assert proxy.counts() == {"GET list": 2}


def test_common_operations_take_one_request_each(proxy, proxied):
    part = parts.write_part(proxied, "entities", pa.table({"n": [1, 2]}))
    assert proxy.counts() == {"HEAD": 1, "PUT": 1}, "one check for an existing part and one upload"
    assert proxy.sent["PUT"] == part.bytes
    for operation, kind in [
        (lambda: parts.read_part(proxied, part, ["n"]), "GET"),
        (lambda: parts.read_part(proxied, part), "GET"),
        (lambda: proxied.size("nothing"), "HEAD"),
        (lambda: proxied.list("nothing"), "GET list"),
        (lambda: proxied.create("new", b"x"), "PUT"),
        (lambda: proxied.delete("nothing"), "DELETE"),
    ]:
        proxy.seen.clear()
        operation()
        assert proxy.counts() == {kind: 1}
    assert 0 < proxy.answered["GET"] <= 2 * part.bytes
    assert proxy.answered["HEAD"] == 0


def test_missing_bucket_is_reported_rather_than_an_empty_index(endpoint):
    store = Store("s3://no-such-bucket-here/index", {"endpoint_url": endpoint})
    with pytest.raises(StoreError, match=r"Cannot list s3://no-such-bucket-here/index.*create the bucket"):
        store.list()
    with pytest.raises(StoreError, match="Cannot write s3://no-such-bucket-here/index/x"):
        store.write("x", b"")
    with pytest.raises((StoreError, IndexNotFound), match="no-such-bucket-here"):
        snapshots.open_latest(store)


LARGE = 24 << 20
WRITER = """
import sys
from graphrag_ray.store import remote_files
from graphrag_ray.store.files import Store
remote_files._SINGLE_PUT_BYTES = int(sys.argv[3])
store = Store(sys.argv[1], {"endpoint_url": sys.argv[2]})
for i in range(9):
    store.write(f"large/{i}", bytes([i]) * int(sys.argv[4]))
"""


@pytest.mark.parametrize(
    ("single_put_bytes", "kind", "nth"),
    [(remote_files._SINGLE_PUT_BYTES, "PUT", 2), (6 << 20, "PUT part", 7)],
    ids=["in one request", "in parts"],
)
def test_killed_writer_leaves_no_partial_object(store, proxy, single_put_bytes, kind, nth):
    kinds = []

    def kill(seen):
        kinds.append(seen.kind)
        if kinds.count(kind) == nth:
            writer.send_signal(signal.SIGKILL)

    proxy.arrived = kill
    arguments = [sys.executable, "-c", WRITER, store.url, proxy.address, str(single_put_bytes), str(LARGE)]
    writer = subprocess.Popen(arguments)
    assert writer.wait(100) == -signal.SIGKILL
    proxy.wait_until_idle()
    assert [(info.path, info.bytes) for info in store.list()] == [("large/0", LARGE)]
    assert store.read("large/0") == bytes(LARGE)
    assert bool(unfinished(store)) == (kind == "PUT part")


def unfinished(store):
    """Return unfinished multipart uploads below a store."""
    fs = store._backend()._fs
    bucket, key, _ = fs.split_path(store.url)
    uploads = fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads") or []
    return [upload for upload in uploads if upload["Key"].startswith(key)]


def test_multipart_upload_survives_faults_and_leaves_no_parts(proxy, proxied, monkeypatch):
    monkeypatch.setattr(remote_files, "_SINGLE_PUT_BYTES", 5 << 20)
    data = os.urandom(11 << 20)
    proxy.script[:] = [("PUT", "503"), ("PUT", "hang up"), ("PUT", "")]
    proxied.write("large", data)
    assert proxied.read("large") == data
    assert proxy.counts()["PUT part"] > 3 and proxy.counts()["PUT"] == 0
    assert not unfinished(proxied)


def test_storage_options_are_passed_to_the_client(endpoint):
    options = {"endpoint_url": endpoint, "path_style": True, "checksums": "when_required"}
    store = Store(f"s3://{BUCKET}/{uuid.uuid4().hex}", options)
    store.write("x", b"1")
    assert store.read("x") == b"1"


# Faults between the client and the server


def test_every_kind_of_fault_is_survived(proxy, proxied):
    faults = ["500", "503", "hang up", "lose the response"]
    proxy.script[:] = [("PUT", fault) for fault in faults]
    proxied.write("x", b"0123456789")
    assert proxy.faults("PUT") == [*faults, ""]
    proxy.script[:] = [("GET", fault) for fault in [*faults[:3], "truncate the response"]]
    assert proxied.read("x") == b"0123456789"
    proxy.script[:] = [("GET", "503"), ("GET", "truncate the response")]
    assert [info.path for info in proxied.list()] == ["x"]
    proxy.script[:] = [("HEAD", "503"), ("HEAD", "hang up")]
    assert proxied.size("x") == 10
    proxy.script[:] = [("DELETE", "500"), ("DELETE", "lose the response")]
    proxied.delete("x")
    assert not proxied.exists("x")
    assert proxy.script == []


def test_create_with_a_lost_response_succeeds(proxy, proxied):
    proxy.script[:] = [("PUT", "lose the response")]
    assert proxied.create("x", b"mine")
    assert proxied.read("x") == b"mine"
    assert not proxied.create("x", b"theirs")


def test_exactly_one_of_several_creates_with_lost_responses_succeeds(proxy, proxied):
    proxy.script[:] = [("PUT", "lose the response")] * 4
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: proxied.create("x", b"%d" % i), range(8)))
    assert won.count(True) == 1


def test_create_that_lost_while_the_server_was_busy_fails(proxy, proxied):
    proxied.write("x", b"theirs")
    proxy.script[:] = [("PUT", "503"), ("PUT", "409")]
    assert not proxied.create("x", b"mine")
    assert proxied.read("x") == b"theirs"


def test_busy_server_is_an_error_after_all_retries(proxy, proxied):
    proxy.script[:] = [("GET", "503")] * files.ATTEMPTS
    with pytest.raises(StoreError, match="after 8 attempts"):
        proxied.read("x")
    assert proxy.script == []
