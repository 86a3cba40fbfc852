"""A real S3 server for tests: Ceph's gateway on loopback, over one monitor and one store in memory.

    with Ceph(folder) as ceph:
        ceph.address, ceph.owner
        reader = ceph.new_user("reader")

The three programs come from Debian's packages (`missing` says which are not there). They run as children of
this process, in the foreground, and are ended by their process ids; should this process be killed, the kernel
ends them. `python tests/ceph.py check` is for scripts: exit code 0 where the server can be started.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "radosgw": "radosgw",
    "radosgw-admin": "radosgw",
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "monmaptool": "ceph-base",
    "ceph": "ceph-common",
    "ceph-authtool": "ceph-common",
}
"""Program -> the Debian package that has it."""
INSTALL = "apt-get install -y --no-install-recommends"
STARTS_WITHIN_S = 90.0
STORE_BYTES = 2 << 30

_PR_SET_PDEATHSIG = 1


class CephError(Exception):
    """The server did not start; the message ends with the log of its programs."""


@dataclass(frozen=True)
class Keys:
    access: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret}


def missing() -> list[str]:
    """Packages that must be installed before the server can be started."""
    return sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})


class Ceph:
    """The server, running inside the `with` block.

    `folder` is an empty folder for its programs. `address` is http://127.0.0.1:port; `owner` has the keys of
    a user who may create buckets.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._config = folder / "ceph.conf"
        self._monitor_port, self._port = _free_ports(2)
        self.address = f"http://127.0.0.1:{self._port}"
        self.owner = Keys("owner", "owner-secret")

    def __enter__(self) -> Ceph:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, the gateway first. The folder may be removed afterwards."""
        for _, child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        self._children.clear()

    def new_user(self, name: str) -> Keys:
        """Create a user without buckets, whom policies name `arn:aws:iam:::user/<name>`."""
        keys = Keys(name, f"{name}-secret")
        named = ["--uid", name, "--display-name", name]
        given = ["--access-key", keys.access, "--secret", keys.secret]
        self._tool("radosgw-admin", "user", "create", *named, *given)
        return keys

    def _start(self) -> None:
        if packages := missing():
            raise CephError(f"packages are missing: {INSTALL} {' '.join(packages)}")
        for name in ("mon", "osd", "gateway", "run", "log"):
            (self._folder / name).mkdir(parents=True)
        cluster = str(uuid.uuid4())
        self._config.write_text(self._configuration(cluster))
        self._make_keyring()
        self._start_monitor(cluster)
        self._start_store()
        gateway = self._child("radosgw", "-n", "client.admin")
        self._until(lambda: _answers(self.address), gateway, "the gateway does not answer")
        named = ["--uid", "owner", "--display-name", "owner"]
        given = ["--access-key", self.owner.access, "--secret", self.owner.secret]
        self._tool("radosgw-admin", "user", "create", *named, *given)

    def _configuration(self, cluster: str) -> str:
        at = self._folder
        values = {
            "fsid": cluster,
            "keyring": at / "keyring",
            "run_dir": at / "run",
            "admin_socket": at / "run" / "$name.sock",
            "log_file": at / "log" / "$name.log",
            "mon_data": at / "mon",
            "osd_data": at / "osd",
            "rgw_data": at / "gateway",
            # Nothing listens on other interfaces.
            "mon_host": f"v2:127.0.0.1:{self._monitor_port}",
            "mon_initial_members": "a",
            "public_addr": "127.0.0.1",
            "cluster_addr": "127.0.0.1",
            "ms_bind_ipv6": "false",
            "rgw_frontends": f"beast endpoint=127.0.0.1:{self._port}",
            # One copy in memory and few placement groups: a cluster of one that starts quickly.
            "osd_objectstore": "memstore",
            "memstore_device_bytes": STORE_BYTES,
            "osd_class_dir": _class_folder(),
            "osd_pool_default_size": 1,
            "osd_pool_default_min_size": 1,
            "osd_pool_default_pg_num": 4,
            "osd_pool_default_pgp_num": 4,
            "osd_pool_default_pg_autoscale_mode": "off",
            "osd_crush_chooseleaf_type": 0,
            "mon_allow_pool_size_one": "true",
            "mon_max_pg_per_osd": 1000,
            # The disk of a test machine may be nearly full, and nothing is stored there.
            "mon_data_avail_warn": 1,
            "mon_data_avail_crit": 1,
            "auth_allow_insecure_global_id_reclaim": "false",
            "rgw_thread_pool_size": 32,
            "rgw_override_bucket_index_max_shards": 1,
            "rgw_dynamic_resharding": "false",
        }
        return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())

    def _make_keyring(self) -> None:
        ring = str(self._folder / "keyring")
        grants = {
            "mon.": {"mon": "allow *"},
            "client.admin": {"mon": "allow *", "osd": "allow *"},
            "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
        }
        for i, (entity, caps) in enumerate(grants.items()):
            create = ["--create-keyring"] if i == 0 else []
            given = [word for part, cap in caps.items() for word in ("--cap", part, cap)]
            self._tool("ceph-authtool", ring, *create, "-n", entity, "--gen-key", *given)

    def _start_monitor(self, cluster: str) -> None:
        plan = str(self._folder / "monitors")
        at = f"[v2:127.0.0.1:{self._monitor_port}]"
        self._tool("monmaptool", "--create", "--fsid", cluster, "--addv", "a", at, plan)
        ring = str(self._folder / "keyring")
        self._tool("ceph-mon", "-i", "a", "--mkfs", "--monmap", plan, "--keyring", ring)
        monitor = self._child("ceph-mon", "-i", "a")
        self._until(lambda: _listens(self._monitor_port), monitor, "the monitor does not listen")

    def _start_store(self) -> None:
        number = str(uuid.uuid4())
        self._tool("ceph", "osd", "new", number)
        self._tool("ceph", "auth", "add", "osd.0", "-i", str(self._folder / "keyring"))
        self._tool("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", number)
        self._child("ceph-osd", "-i", "0")

    def _child(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self._folder / "log" / f"{program}.out").open("wb")
        with log:
            child = subprocess.Popen(
                [program, "-c", str(self._config), "-f", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (one system call)
            )
        self._children.append((program, child))
        return child

    def _tool(self, program: str, *arguments: str) -> str:
        config = [] if program in ("monmaptool", "ceph-authtool") else ["-c", str(self._config)]
        environment = {**os.environ, "CEPH_CONF": str(self._config)}
        try:
            done = subprocess.run(
                [program, *config, *arguments],
                capture_output=True,
                text=True,
                timeout=STARTS_WITHIN_S,
                check=True,
                env=environment,
            )
        except subprocess.CalledProcessError as e:
            raise CephError(f"{program} {' '.join(arguments)}: {e.stderr[-2000:]}") from e
        except subprocess.TimeoutExpired as e:
            raise CephError(f"{program} {' '.join(arguments)} hangs\n{self._logs()}") from e
        return done.stdout

    def _until(self, ready: Callable[[], bool], child: subprocess.Popen[bytes], otherwise: str) -> None:
        end = time.monotonic() + STARTS_WITHIN_S
        while not ready():
            if child.poll() is not None or time.monotonic() > end:
                raise CephError(f"{otherwise}\n{self._logs()}")
            time.sleep(0.1)

    def _logs(self) -> str:
        files = sorted((self._folder / "log").iterdir())
        return "\n".join(f"{file.name}: …{file.read_text(errors='replace')[-1500:]}" for file in files)


def _end_with_parent() -> None:
    """Runs in the child before its program starts."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _class_folder() -> str:
    """Where the packages install the plugins of ceph-osd; its own default is another path."""
    found = sorted(Path("/usr/lib").glob("*/rados-classes")) or [Path("/usr/lib/rados-classes")]
    return str(found[0])


def _free_ports(n: int) -> list[int]:
    open_ones = [socket.socket() for _ in range(n)]
    try:
        for s in open_ones:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in open_ones]
    finally:
        for s in open_ones:
            s.close()


def _listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex(("127.0.0.1", port)) == 0


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def read_only_policy(bucket: str, user: str) -> str:
    """A bucket policy that allows a user only to list the bucket and get its objects."""
    who = {"AWS": [f"arn:aws:iam:::user/{user}"]}
    may = ["s3:ListBucket", "s3:GetBucketLocation", "s3:GetObject"]
    on = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    statement = {"Effect": "Allow", "Principal": who, "Action": may, "Resource": on}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


if __name__ == "__main__":
    if sys.argv[1:] != ["check"]:
        sys.exit("usage: python tests/ceph.py check")
    if packages := missing():
        sys.exit(f"a real S3 server needs packages that are not installed: {INSTALL} {' '.join(packages)}")
