"""Measuring tools of the growth and community benchmarks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import communities as communities_benchmark
import growth
import numpy as np
import pytest
from processes import Totals

FOLDER = Path(growth.__file__).parent

BURNS = """
import subprocess, sys, time
def burn(s):
    end = time.process_time() + s
    while time.process_time() < end: pass
if len(sys.argv) > 1:
    burn(0.5)
    time.sleep(0.6)
else:
    # Nobody waits for the child, so its time is added to nobody's.
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
    kept = b"x" * 60_000_000
    print("read        0.1 s", flush=True)
    time.sleep(2.5)
"""

READS = """
import subprocess, sys, time
if len(sys.argv) > 1:
    kept = open(sys.argv[1], "rb").read()
    time.sleep(0.6)
else:
    with open("large", "wb") as file:
        file.write(bytes(40_000_000))
    subprocess.run([sys.executable, __file__, "large"], check=True)
    time.sleep(0.6)
"""

MEASURES = """
import json, sys
from dataclasses import asdict
from growth import lap_of
from processes import measure
totals, text = measure([sys.executable, sys.argv[1]], lap_of)
print(json.dumps(asdict(totals) | {"text": text}))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_time_of_an_orphaned_child_is_counted(tmp_path):
    (tmp_path / "burns.py").write_text(BURNS)
    # Use a separate process, because adopting orphans cannot be undone.
    command = [sys.executable, "-c", MEASURES, str(tmp_path / "burns.py")]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["exit_code"] == 0
    assert found["n_processes"] == 2
    assert found["cpu_s"]["other"] >= 0.4
    assert found["driver_peak"] > 60_000_000
    assert set(found["laps"]) == {"read", "end"}


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="reads /proc")
def test_reads_of_a_child_are_counted_once(tmp_path):
    (tmp_path / "reads.py").write_text(READS)
    command = [sys.executable, "-c", MEASURES, str(tmp_path / "reads.py")]
    env = os.environ | {"PYTHONPATH": str(FOLDER)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert found["exit_code"] == 0
    assert 40_000_000 <= found["read"] < 70_000_000


@pytest.mark.parametrize(
    ("line", "lap"),
    [
        ("read              9.1 s  documents 557", "read"),
        ("communities       0.6 s  levels C0 67", "communities"),
        ("merge         unchanged  ", "merge"),
        ("extract      1312/2127  in flight 0  121,998,650 tokens/min  3 s left", None),
        ("compact         700.0 s  files 12", None),
        ("Snapshot 1 is committed at /tmp/growth/i1", None),
    ],
)
def test_step_ends_with_the_line_that_reports_its_seconds(line, lap):
    assert growth.lap_of(line) == lap


def test_table_rows_match_their_headers():
    names = ["documents", "text_units", "entities", "relationships", "reports"]
    found = {"counts": dict.fromkeys(names, 1), "bytes": {"tables": 1, "work": 1}}
    totals = Totals(laps={"read": {"wall_s": 1.0, "cpu_s": 2.0, "driver_peak": 3}})
    header, ruler = growth.HEADER.splitlines()
    row = growth.summary_row(1_000_000, totals, found, Totals())
    assert header.count("|") == ruler.count("|") == row.count("|")
    for table in (growth.steps_table([(1_000_000, totals)] * 2), growth.roles_table([(1_000_000, totals)])):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_planted_graph_is_simple_and_about_the_requested_size():
    graph = communities_benchmark.planted_graph(20_000, seed=1)
    again = communities_benchmark.planted_graph(20_000, seed=1)
    assert all((graph[name] == again[name]).all() for name in graph)
    n, source, target = len(graph["node_keys"]), graph["source"], graph["target"]
    assert n == 10_000
    assert 18_000 < len(source) < 21_000
    assert (source != target).all()
    pairs = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert pairs.min() >= 0
    assert pairs.max() < n
    assert np.bincount(pairs.ravel()).max() >= communities_benchmark.HUB_SHARE * 0.9 * n
