"""The S3 server of the tests over object storage, by GRAPHRAG_RAY_TEST_S3:

(not set)          moto's, installed once into a virtual environment of its own under ~/.cache, because pip
                   resolves for minutes with s3fs in the same one; where that cannot be, tests are skipped
ceph               Ceph's gateway (see ceph.py), as `make test-cluster` sets it
http://host:port   any other, whose keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import s3fs
from ceph import Ceph, Keys, read_only_policy

VARIABLE = "GRAPHRAG_RAY_TEST_S3"
BUCKET = "graphrag-ray-tests"
MOTO = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "graphrag-ray-tests" / "moto"


@dataclass(frozen=True)
class S3Server:
    """address: http://host:port; owner: keys of who owns the bucket; ceph: where it is Ceph's."""

    address: str
    owner: Keys
    ceph: Ceph | None = None

    def files(self, keys: Keys | None = None) -> s3fs.S3FileSystem:
        """A file system of its own, as the owner or another."""
        keys = keys or self.owner
        given = {"key": keys.access, "secret": keys.secret}
        return s3fs.S3FileSystem(
            endpoint_url=self.address, **given, use_listings_cache=False, skip_instance_cache=True
        )

    def reader(self) -> Keys:
        """Keys of a user who can read the bucket and change nothing. Skips where there can be none."""
        if self.ceph is None:
            pytest.skip("no user of this server can be kept from writing (Ceph's has one)")
        name = f"reader-{os.urandom(4).hex()}"
        keys = self.ceph.new_user(name)
        policy = read_only_policy(BUCKET, name)
        self.files().call_s3("put_bucket_policy", Bucket=BUCKET, Policy=policy)
        return keys


@contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """The server that is wanted, with an empty bucket. folder: for its files."""
    wanted = os.environ.get(VARIABLE)
    with ExitStack() as stack:
        if wanted == "ceph":
            ceph = stack.enter_context(Ceph(folder / "ceph"))
            server = S3Server(ceph.address, ceph.owner, ceph)
        elif wanted:
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            server = S3Server(wanted, Keys(*(os.environ[name] for name in names)))
        else:
            server = S3Server(stack.enter_context(_moto(folder)), Keys("testing", "testing"))
        if not server.files().exists(BUCKET):
            server.files().mkdir(BUCKET)
        yield server


@contextmanager
def _moto(folder: Path) -> Iterator[str]:
    program = _moto_program()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
        try:
            end = time.monotonic() + 60
            while not _answers(f"{address}/moto-api/"):
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail("moto's server does not start")
                time.sleep(0.1)
            yield address
        finally:
            process.kill()
            process.wait()


def _moto_program() -> Path:
    program = MOTO / "bin" / "moto_server"
    try:
        MOTO.parent.mkdir(parents=True, exist_ok=True)
        with (MOTO.parent / "lock").open("w") as lock:  # two processes test side by side
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                venv = [sys.executable, "-m", "venv", "--clear", MOTO]
                subprocess.run(venv, check=True, capture_output=True)
                pip = [MOTO / "bin" / "python", "-m", "pip", "install", "-q", "moto[server]"]
                subprocess.run(pip, check=True, capture_output=True, timeout=180)
    except (OSError, subprocess.SubprocessError) as e:
        pytest.skip(f"moto cannot be installed: {e}")
    return program


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True
