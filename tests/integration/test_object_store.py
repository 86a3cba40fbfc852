"""The store against an S3 server: moto's, or the one that GRAPHRAG_RAY_TEST_S3 names (`http://host:port`,
with its keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).

moto is installed once into a virtual environment of its own under ~/.cache, since pip resolves for minutes
with s3fs in the same one. Where that is not possible these tests are skipped.
"""

import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import s3fs

from graphrag_ray.errors import IndexNotFound, StoreError
from graphrag_ray.store import files, snapshots
from graphrag_ray.store.files import Store

HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "graphrag-ray-tests" / "moto"
BUCKET = "graphrag-ray-tests"


def _contract_tests():
    path = Path(__file__).parents[1] / "unit" / "store" / "test_store_contract.py"
    spec = importlib.util.spec_from_file_location("store_contract_on_s3", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: test for name, test in vars(module).items() if name.startswith("test_")}


globals().update(_contract_tests())


def _moto_server():
    """The program, installed when it is not there yet."""
    program = HOME / "bin" / "moto_server"
    if not program.exists():
        try:
            HOME.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True, capture_output=True)
            pip = [HOME / "bin" / "python", "-m", "pip", "install", "-q", "moto[server]"]
            subprocess.run(pip, check=True, capture_output=True, timeout=180)
        except (OSError, subprocess.SubprocessError) as e:
            pytest.skip(f"moto cannot be installed: {e}")
    return program


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The address of an S3 server with a bucket."""
    with pytest.MonkeyPatch.context() as patch:
        given = os.environ.get("GRAPHRAG_RAY_TEST_S3")
        if given:
            _make_bucket(given)
            yield given
            return
        program = _moto_server()
        for name, value in (("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing")):
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        port = _free_port()
        log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
        process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(address, process)
            _make_bucket(address)
            yield address
        finally:
            process.kill()
            process.wait()
            log.close()


def _wait_for(address, process):
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/moto-api/", timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("moto's server does not start")


def _make_bucket(address):
    fs = s3fs.S3FileSystem(endpoint_url=address, skip_instance_cache=True)
    if not fs.exists(BUCKET):
        fs.mkdir(BUCKET)


@pytest.fixture
def store(endpoint):
    return Store(f"s3://{BUCKET}/an index über Bäume {uuid.uuid4().hex[:8]}", {"endpoint_url": endpoint})


def test_a_listing_of_several_pages_is_whole(store):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: store.write(f"many/{i:04d}", b"x"), range(1005)))
    assert [info.path for info in store.list("many")] == [f"many/{i:04d}" for i in range(1005)]


def test_a_missing_bucket_is_told_and_not_taken_for_an_empty_index(endpoint):
    store = Store("s3://no-such-bucket-here/index", {"endpoint_url": endpoint})
    with pytest.raises(StoreError, match=r"cannot list s3://no-such-bucket-here/index.*Create the bucket"):
        store.list()
    with pytest.raises(StoreError, match="cannot write s3://no-such-bucket-here/index/x"):
        store.write("x", b"")
    with pytest.raises((StoreError, IndexNotFound), match="no-such-bucket-here"):
        snapshots.open_latest(store)


def test_options_in_plain_words_reach_the_client(endpoint):
    options = {"endpoint_url": endpoint, "path_style": True, "checksums": "when_required"}
    store = Store(f"s3://{BUCKET}/{uuid.uuid4().hex}", options)
    store.write("x", b"1")
    assert store.read("x") == b"1"


# faults between the client and the server


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on, except as the script says: (method, what happens instead)."""

    protocol_version = "HTTP/1.1"
    target = ""
    script: ClassVar[list] = []
    seen: ClassVar[list] = []

    def _handle(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.script.pop(0)[1] if self.script and self.script[0][0] == self.command else ""
        self.seen.append((self.command, fault))
        if fault in ("500", "503", "409"):
            return self._answer(int(fault), [], b"<Error><Code>SlowDown</Code></Error>")
        if fault == "hang up":
            return self._hang_up()
        connection = http.client.HTTPConnection(self.target.removeprefix("http://"), timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault == "lose the answer":
            return self._hang_up()
        cut = len(data) // 2 if fault == "cut the answer short" else len(data)
        return self._answer(answer.status, answer.getheaders(), data, cut)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle

    def _answer(self, status, headers, data, cut=None):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = next((v for n, v in headers if n.lower() == "content-length"), str(len(data)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None and cut < len(data):
            self._hang_up()

    def _hang_up(self):
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_):
        pass


@pytest.fixture
def proxied(endpoint, monkeypatch):
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(Proxy, "target", endpoint)
    monkeypatch.setattr(Proxy, "script", [])
    monkeypatch.setattr(Proxy, "seen", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    yield Store(f"s3://{BUCKET}/{uuid.uuid4().hex}", {"endpoint_url": address})
    server.shutdown()
    server.server_close()


def test_every_kind_of_fault_is_ridden_out(proxied):
    faults = ["500", "503", "hang up", "lose the answer"]
    Proxy.script[:] = [("PUT", fault) for fault in faults]
    proxied.write("x", b"0123456789")
    assert [fault for method, fault in Proxy.seen if method == "PUT"] == [*faults, ""]
    Proxy.script[:] = [("GET", fault) for fault in [*faults[:3], "cut the answer short"]]
    assert proxied.read("x") == b"0123456789"
    Proxy.script[:] = [("GET", "503"), ("GET", "cut the answer short")]
    assert [info.path for info in proxied.list()] == ["x"]
    Proxy.script[:] = [("HEAD", "503"), ("HEAD", "hang up")]
    assert proxied.size("x") == 10
    Proxy.script[:] = [("DELETE", "500"), ("DELETE", "lose the answer")]
    proxied.delete("x")
    assert not proxied.exists("x")
    assert Proxy.script == []


def test_a_create_whose_answer_was_lost_on_the_way_has_won(proxied):
    Proxy.script[:] = [("PUT", "lose the answer")]
    assert proxied.create("x", b"mine")
    assert proxied.read("x") == b"mine"
    assert not proxied.create("x", b"mine")


def test_of_creates_with_equal_content_and_lost_answers_exactly_one_has_won(proxied):
    Proxy.script[:] = [("PUT", "lose the answer")] * 4
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: proxied.create("x", b"the same"), range(8)))
    assert won.count(True) == 1


def test_a_create_that_lost_while_the_server_was_busy_has_lost(proxied):
    proxied.write("x", b"theirs")
    Proxy.script[:] = [("PUT", "503"), ("PUT", "409")]
    assert not proxied.create("x", b"mine")
    assert proxied.read("x") == b"theirs"


def test_a_server_that_stays_busy_is_an_error_in_the_end(proxied):
    Proxy.script[:] = [("GET", "503")] * files.ATTEMPTS
    with pytest.raises(StoreError, match="last of 8 attempts"):
        proxied.read("x")
    assert Proxy.script == []
