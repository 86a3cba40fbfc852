"""The pool of worker processes for computations."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import until

from graphrag_ray.base import logs
from graphrag_ray.base.errors import UsageError
from graphrag_ray.base.unexpected_errors import describe_unexpected_error
from graphrag_ray.engine.process_pool import ProcessPool


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    found = ProcessPool(2)
    yield found
    found.close()


def where(x: int) -> tuple[int, int]:
    return x, os.getpid()


def killed_elsewhere(x: tuple[int, int]) -> int:
    number, here = x
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refusing(x: int) -> None:
    raise ValueError(f"{x} is odd")


def test_small_runs_use_only_this_process(pool: ProcessPool):
    assert list(pool.map(where, range(3))) == [(x, os.getpid()) for x in range(3)]
    assert list(ProcessPool(1, after_s=0).map(where, [1, 2])) == [(1, os.getpid()), (2, os.getpid())]


def test_processes_compute_and_results_come_in_order(pool: ProcessPool):
    pool.wait()
    found = list(pool.map(where, range(40)))
    assert [x for x, _ in found] == list(range(40)) and os.getpid() not in {p for _, p in found}
    assert list(pool.map(where, [7])) == [(7, os.getpid())]  # which no other process could do earlier
    with pytest.raises(ValueError, match="1 is odd"):
        list(pool.map(refusing, [1, 2]))


class Unsendable(Exception):
    def __init__(self, part: str, whole: str) -> None:
        super().__init__(f"{part} of {whole}")


def failing(x: int) -> None:
    raise Unsendable("a leg", "a table")


def test_an_unpicklable_error_is_replaced(pool: ProcessPool):
    pool.wait()
    with pytest.raises(RuntimeError, match="Unsendable: a leg of a table"):
        list(pool.map(failing, [1, 2]))
    assert list(pool.map(str, [1, 2])) == ["1", "2"]  # no process has died of it


def test_an_error_from_another_process_says_where_it_occurred(pool: ProcessPool):
    pool.wait()
    with pytest.raises(UsageError) as raised:
        list(pool.map(logs.from_environment, [{logs.VARIABLE: "loud"}] * 2))
    assert re.search(r"\(base/logs.py:\d+\)$", describe_unexpected_error(raised.value))


def test_a_shared_value_is_sent_with_each_input_if_the_file_cannot_be_written(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pool.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not" / "there"))
    value = pool.share("abc")
    assert list(pool.map(lambda x: value()[x], [0, 1, 2])) == ["a", "b", "c"]


def test_there_is_one_process_per_usable_core(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    pool = ProcessPool(None)
    pool.wait()
    assert list(pool.map(where, [1, 2])) == [(1, os.getpid()), (2, os.getpid())]


def test_a_shared_value_is_written_once(pool: ProcessPool):
    pool.wait()
    value = pool.share(["a", "large", "value"])
    assert value() == ["a", "large", "value"]
    assert list(pool.map(lambda x: value()[x], [0, 1, 2, 0])) == ["a", "large", "value", "a"]
    assert pool.spill(None).endswith("1.pickle")


def test_after_a_process_died_this_process_does_all_the_work(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture
):
    pool.wait()
    assert list(pool.map(killed_elsewhere, [(x, os.getpid()) for x in range(9)])) == list(range(9))
    assert list(pool.map(where, [1, 2])) == [(1, os.getpid()), (2, os.getpid())]
    [told] = caplog.messages
    assert "died: out of memory" in told and "--ray" in told


def test_processes_exit_even_if_their_parent_is_killed():
    program = (
        "import os, time\n"
        "from graphrag_ray.engine.process_pool import ProcessPool\n"
        "pool = ProcessPool(2)\n"
        "pool.wait()\n"
        "print(pool.submit(os.getpid).result(), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        other = int(parent.stdout.readline())
        parent.kill()
    until(lambda: _is_gone(other))


def test_processes_exit_quietly_without_pgrep():
    program = (
        "from graphrag_ray.engine.process_pool import ProcessPool\n"
        "pool = ProcessPool(2)\n"
        "pool.wait()\n"
        "print(list(pool.map(abs, [-1, -2])), flush=True)\n"
        "pool.close()\n"
    )
    line, bare = [sys.executable, "-c", program], os.environ | {"PATH": ""}
    ended = subprocess.run(line, capture_output=True, text=True, env=bare, check=False)
    assert (ended.stdout, ended.stderr) == ("[1, 2]\n", "")


def test_starting_processes_ignore_ctrl_c():
    program = (
        "import os, signal\n"
        "from graphrag_ray.engine.process_pool import ProcessPool\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "pool = ProcessPool(2, after_s=0)\n"
        "pool.is_up()\n"
        "os.killpg(0, signal.SIGINT)\n"
        "pool.wait()\n"
        "print(list(pool.map(abs, [-1, -2])))\n"
        "pool.close()\n"
    )
    line = [sys.executable, "-c", program]
    ended = subprocess.run(line, capture_output=True, text=True, start_new_session=True, check=False)
    assert (ended.stdout, ended.stderr) == ("[1, 2]\n", "")


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
