"""The CPU benchmark counts what the processes of a run use, whoever started them."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.cpu import MARK, Processes, sampled

BURN = "import time\nwhile time.process_time() < 0.7: pass\n"
SPAWN = f"import os, subprocess, sys\nos.setsid()\nsubprocess.Popen([sys.executable, '-c', {BURN!r}]).wait()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_grandchild_in_a_session_of_its_own_is_counted_and_a_stranger_is_not() -> None:
    processes = Processes("a-mark-of-this-test")
    stranger = subprocess.Popen([sys.executable, "-c", BURN])
    with sampled(processes):
        subprocess.run([sys.executable, "-c", SPAWN], env={MARK: processes.mark}, check=True)
    stranger.wait()
    assert 0.2 < sum(processes.cpu_s.values()) < 1.1
    assert len(processes.cpu_s) == 2
