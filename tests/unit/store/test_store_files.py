import errno
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from graphrag_ray.base.errors import SettingsError, StoreError
from graphrag_ray.store import files
from graphrag_ray.store.files import Store
from graphrag_ray.store.local_files import LocalFiles
from graphrag_ray.store.remote_files import ObjectFiles, s3_arguments


class Scripted(LocalFiles):
    """A local folder whose operations raise scripted errors, before or (`after`) after their work."""

    script: ClassVar[list] = []

    def __init__(self, url, options):
        super().__init__(url.removeprefix("scripted://"), options)

    def _fault(self, operation):
        if self.script and self.script[0][0] == operation:
            raise self.script.pop(0)[1]

    def read(self, path):
        self._fault("read")
        return super().read(path)

    def list(self, folder):
        self._fault("list")
        yield from super().list(folder)

    def create(self, path, data):
        self._fault("create")
        created = super().create(path, data)
        self._fault("after create")
        return created

    def is_transient(self, error):
        return isinstance(error, ConnectionError)


@pytest.fixture
def sleeps(monkeypatch):
    sleeps = []
    monkeypatch.setattr(files, "_sleep", sleeps.append)
    return sleeps


@pytest.fixture
def scripted(tmp_path, monkeypatch, sleeps):
    monkeypatch.setitem(files.BACKENDS, "scripted", Scripted)
    monkeypatch.setattr(Scripted, "script", [])
    return Store(f"scripted://{tmp_path}")


def run_python(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True)


# local folders


def test_exactly_one_process_wins_concurrent_creates(tmp_path):
    code = """if True:
        import sys, time, os
        from concurrent.futures import ThreadPoolExecutor
        from graphrag_ray.store.files import Store
        store = Store(sys.argv[1])
        with ThreadPoolExecutor(8) as pool:
            while not os.path.exists(sys.argv[1] + "/go"):
                time.sleep(0.001)
            print(sum(pool.map(lambda i: store.create("x", b"%d-%d" % (os.getpid(), i)), range(8))))
    """
    processes = [run_python(code, tmp_path) for _ in range(4)]
    (tmp_path / "go").touch()
    wins = [int(p.communicate(timeout=60)[0]) for p in processes]
    assert sorted(wins) == [0, 0, 0, 1]
    winner = processes[wins.index(1)]
    assert (tmp_path / "x").read_text().startswith(f"{winner.pid}-")


def test_readers_see_complete_files_even_if_the_writer_is_killed(tmp_path):
    code = """if True:
        import sys
        from graphrag_ray.store.files import Store
        store = Store(sys.argv[1])
        print("ready", flush=True)
        while True:
            for byte in (b"a", b"b"):
                store.write("x", byte * 3_000_000)
    """
    store = Store(str(tmp_path))
    store.write("x", b"a" * 3_000_000)
    process = run_python(code, tmp_path)
    assert process.stdout.readline() == "ready\n"
    seen = {store.read("x") for _ in range(200)}
    process.send_signal(signal.SIGKILL)
    process.communicate()
    seen.add(store.read("x"))
    assert {(len(data), data[:1]) for data in seen} == {(3_000_000, b"a"), (3_000_000, b"b")}
    assert [i.path for i in store.list()] == ["x"]


def test_unfinished_write_is_not_listed(tmp_path):
    (tmp_path / ".tmp-123-abc").write_bytes(b"half")
    assert Store(str(tmp_path)).list() == []


def test_stored_file_has_default_permissions(tmp_path):
    Store(str(tmp_path)).write("stored", b"x")
    (tmp_path / "other").write_bytes(b"x")
    assert (tmp_path / "stored").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_create_has_one_winner_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = Store(str(tmp_path))
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda i: store.create("x", b"%d" % i), range(32)))
    assert won.count(True) == 1
    assert store.read("x") == b"%d" % won.index(True)
    assert [i.path for i in store.list()] == ["x"]


def test_full_disk_is_explained_and_leaves_no_partial_file(tmp_path, monkeypatch):
    def raise_disk_full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(str(tmp_path))
    store.write("x", b"old")
    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(StoreError, match=r"Cannot write .*/x: No space left.*run the same command"):
        store.write("x", b"new")
    with pytest.raises(StoreError, match=r"Cannot create .*/y: No space left"):
        store.create("y", b"new")
    monkeypatch.undo()
    assert store.read("x") == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_permission_error_is_explained(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"Cannot write .*/a/x: Permission denied. check the permissions"):
        Store(str(tmp_path)).write("a/x", b"")


def test_listing_below_a_file_is_an_error(tmp_path):
    (tmp_path / "work").write_text("not a folder")
    with pytest.raises(StoreError, match="Cannot list"):
        Store(str(tmp_path)).list("work")


def test_relative_url_is_resolved_when_the_store_is_created(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = pickle.loads(pickle.dumps(Store("index")))
    monkeypatch.chdir("/")
    store.write("x", b"1")
    assert (tmp_path / "index" / "x").read_bytes() == b"1"
    assert Store(f"file://{tmp_path}/index").read("x") == b"1"


def test_creating_a_store_touches_nothing(tmp_path):
    store = Store(str(tmp_path / "index"))
    assert store.list() == []
    assert not (tmp_path / "index").exists()
    Store("s3://no-such-bucket-anywhere/x", {"endpoint_url": "http://127.0.0.1:1"})


# transient failures


def test_transient_failure_is_retried_with_growing_delays(scripted, sleeps):
    scripted.write("x", b"1")
    Scripted.script += [("read", ConnectionError())] * 4
    assert scripted.read("x") == b"1"
    assert [0.5 <= delay / (0.2 * 2**i) <= 1.5 for i, delay in enumerate(sleeps)] == [True] * 4


def test_persistent_failure_is_raised_after_all_attempts(scripted, sleeps):
    Scripted.script += [("read", ConnectionError("the server hung up"))] * files.ATTEMPTS
    with pytest.raises(StoreError, match=r"Cannot read .*/x after 8 attempts: the server hung up"):
        scripted.read("x")
    assert 5 < sum(sleeps) < 40


def test_persistent_listing_failure_is_not_an_empty_folder(scripted):
    for folder in ("work", ""):
        Scripted.script += [("list", ConnectionError())] * files.ATTEMPTS
        with pytest.raises(StoreError, match="Cannot list"):
            scripted.list(folder)


def test_permanent_error_is_raised_without_retries(scripted, sleeps):
    Scripted.script += [("read", PermissionError(errno.EACCES, "Access Denied"))]
    with pytest.raises(StoreError, match="Access Denied"):
        scripted.read("x")
    assert sleeps == []


def test_programming_errors_are_not_wrapped(scripted):
    Scripted.script += [("read", KeyError("x"))]
    with pytest.raises(KeyError):
        scripted.read("x")


def test_create_with_a_lost_response_counts_as_won(scripted):
    Scripted.script += [("after create", ConnectionError())]
    assert scripted.create("x", b"mine")
    assert not scripted.create("x", b"theirs")


def test_create_lost_after_a_fault_counts_as_lost(scripted):
    scripted.write("x", b"theirs")
    Scripted.script += [("create", ConnectionError())]
    assert not scripted.create("x", b"mine")


def test_retries_do_not_use_the_global_random_generator(scripted):
    import random

    random.seed(5)
    expected = random.random()
    random.seed(5)
    Scripted.script += [("read", ConnectionError())] * 2
    with pytest.raises(FileNotFoundError):
        scripted.read("x")
    assert random.random() == expected


# other storage


def test_store_without_conditional_create_warns_once(caplog):
    store = Store("memory://no-create/x")
    assert not store.can_create
    assert store.create("a/b", b"1")
    assert not store.create("a/b", b"2")
    assert store.read("a/b") == b"1"
    assert caplog.text.count("concurrent writers") == 1
    assert [i.path for i in store.list()] == ["a/b"]
    store.delete("a/b")
    assert store.list("a") == []


@pytest.mark.parametrize("option", ["key", "secret", "token", "password", "account_key"])
def test_secrets_in_options_are_refused_and_not_repeated(option):
    with pytest.raises(SettingsError, match=option) as raised:
        Store("s3://bucket", {option: "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_unusable_urls_are_refused():
    with pytest.raises(SettingsError, match="chained"):
        Store("simplecache::s3://bucket/x")
    with pytest.raises(SettingsError, match="password") as raised:
        Store("sftp://me:hunter2@host/x")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(SettingsError, match="empty"):
        Store(" ")
    with pytest.raises(SettingsError, match="Cannot use storage at nonsense://x"):
        Store("nonsense://x").read("y")
    with pytest.raises(SettingsError, match="no storage options"):
        Store("/tmp/x", {"region": "eu"}).read("y")


def test_s3_options_become_client_arguments():
    arguments = s3_arguments(
        {
            "endpoint_url": "http://127.0.0.1:9",
            "region": "eu-west-1",
            "path_style": True,
            "checksums": "when_required",
            "config_kwargs": {"s3": {"payload_signing_enabled": True}},
        }
    )
    assert arguments["endpoint_url"] == "http://127.0.0.1:9"
    assert arguments["client_kwargs"] == {"region_name": "eu-west-1"}
    config = arguments["config_kwargs"]
    assert config["s3"] == {"payload_signing_enabled": True, "addressing_style": "path"}
    assert config["request_checksum_calculation"] == "when_required"
    assert config["response_checksum_validation"] == "when_required"


class ResponseError(Exception):
    """An error with a response, as in botocore."""

    def __init__(self, status, code=""):
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def with_cause(error, cause):
    error.__cause__ = cause
    return error


# Classified by the name of a base class, like errors of botocore and aiohttp.
EndpointConnectionError = type("EndpointConnectionError", (type("HTTPClientError", (Exception,), {}),), {})
ClientPayloadError = type("ClientPayloadError", (Exception,), {})
ContentLengthError = type("ContentLengthError", (Exception,), {"code": 400})


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (with_cause(OSError(errno.EIO, "We encountered an internal error"), ResponseError(500)), True),
        (with_cause(OSError(errno.EBUSY, "Reduce your request rate"), ResponseError(503, "SlowDown")), True),
        (
            with_cause(OSError(errno.EBUSY, "conflict"), ResponseError(409, "ConditionalRequestConflict")),
            True,
        ),
        (with_cause(OSError(errno.EINVAL, "InvalidRequest"), ResponseError(400)), False),
        (with_cause(OSError(errno.EIO, "unknown"), ResponseError(501)), False),
        (PermissionError("Access Denied"), False),
        (FileNotFoundError("x"), False),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(errno.EBUSY, "ServiceUnavailable"), True),
        (EndpointConnectionError(), True),
        (with_cause(ClientPayloadError(), ContentLengthError()), True),
        (OSError(errno.EINVAL, "x"), False),
    ],
)
def test_object_store_errors_are_classified(error, transient):
    assert ObjectFiles("memory://x", {}).is_transient(error) is transient


@pytest.mark.parametrize(
    "refusal",
    [FileExistsError("x"), with_cause(OSError(errno.EINVAL, "PreconditionFailed"), ResponseError(412))],
)
def test_both_ways_of_refusing_a_create_count_as_lost(refusal):
    storage = ObjectFiles("s3://bucket/x", {"endpoint_url": "http://127.0.0.1:1"})

    class Refusing:
        def pipe_file(self, *_args, **options):
            assert options["mode"] == "create"
            raise refusal

    storage._fs = Refusing()
    assert storage.create("a", b"") is False


def test_attempts_to_reach_a_server_are_limited(sleeps, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    store = Store("s3://bucket/x", {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1"})
    with pytest.raises(StoreError, match=r"Cannot read s3://bucket/x/a after 8 attempts: .*127.0.0.1:1"):
        store.read("a")
    assert len(sleeps) == files.ATTEMPTS - 1


def test_forked_and_spawned_processes_open_their_own_connections(tmp_path):
    store = Store(str(tmp_path))
    store.write("x", b"1")
    pickled = tmp_path / "store.pickle"
    pickled.write_bytes(pickle.dumps(store))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).read('x').decode(), end='')"
    assert run_python(code, pickled).communicate(timeout=60)[0] == "1"
    assert Path(pickled).stat().st_size < 300


@pytest.fixture
def outside(tmp_path):
    """A folder outside of the index, with a file."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_bytes(b"dear")
    return tmp_path / "mine"


def test_folder_symlinks_are_not_followed(tmp_path, outside):
    store = Store(str(tmp_path / "index"))
    store.write("work/a", b"1")
    (tmp_path / "index" / "tables").symlink_to(outside)
    for act in (
        store.list,
        lambda: store.list("tables"),
        store.list_temporary,
        lambda: store.delete("tables/letter"),
        lambda: store.write("tables/new", b""),
        lambda: store.write("tables/below/new", b""),
        lambda: store.create("tables/new", b""),
    ):
        with pytest.raises(StoreError, match=r"tables.* symbolic link"):
            act()
    assert [path.name for path in outside.iterdir()] == ["letter"]
    assert [info.path for info in store.list("work")] == ["work/a"]


def test_deleting_a_file_symlink_keeps_its_target(tmp_path, outside):
    store = Store(str(tmp_path / "index"))
    store.write("tables/a", b"1")
    (tmp_path / "index" / "tables" / "b").symlink_to(outside / "letter")
    assert [info.path for info in store.list("tables")] == ["tables/a", "tables/b"]
    store.delete("tables/b")
    store.write("tables/b", b"2")
    assert (outside / "letter").read_bytes() == b"dear" and store.read("tables/b") == b"2"


def test_store_root_may_be_a_symlink(tmp_path, outside):
    (tmp_path / "index").symlink_to(outside)
    store = Store(str(tmp_path / "index"))
    store.write("tables/a", b"1")
    assert store.create("b", b"2") and [i.path for i in store.list()] == ["b", "letter", "tables/a"]
    store.delete("tables/a")
    store.delete("letter")
    assert [i.path for i in store.list()] == ["b"]


@pytest.mark.timeout(30)
def test_pipes_and_devices_are_not_read(tmp_path):
    store = Store(str(tmp_path))
    os.mkfifo(tmp_path / "CURRENT")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in ("CURRENT", "endless"):
        with pytest.raises(StoreError, match="not a regular file"):
            store.read(path)
        with pytest.raises(StoreError, match="not a regular file"):
            store.read_range(path, 0, 10)
