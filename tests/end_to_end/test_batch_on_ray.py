"""A batch on a real Ray, as the job script starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import toy_model
from endpoint import Answer
from world import TOWN, World

from graphrag_ray.asking.batch import answer_batch

JOB = Path(__file__).parents[2] / "jobs" / "query.py"
NAMES = ("ALICE", "HEIDI", "ERIN", "JUDY", "IVAN", "DAVE")


def test_a_job_on_ray_answers_as_this_process_does_and_asks_nothing_again(world: World, tmp_path: Path):
    world.write(TOWN)
    world.index(communities={"small_component": 1})
    questions = tmp_path / "questions.csv"
    questions.write_text("id,question\n" + "".join(f"{n},What about {n} ?\n" for n in NAMES))
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    asked = world.asked()
    answer_batch(world.open(), str(questions), str(here))
    wanted = world.prompts(asked)
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.2)

    def job() -> subprocess.CompletedProcess[str]:
        files = ["--root", world.root, "--batch", questions, "--out", there, "--set", "run.flush_s=0.1"]
        line = [sys.executable, JOB, *files]
        return subprocess.run([*map(str, line)], capture_output=True, text=True, timeout=180, check=False)

    asked = world.asked()
    done = job()
    assert done.returncode == 0, done.stderr
    assert f"6 questions: {there}" in done.stdout and "Traceback" not in done.stderr
    assert world.prompts(asked) == wanted and world.endpoint.peak_in_flight >= 4
    rows = [[r | {"seconds": 0} for r in pq.read_table(p).to_pylist()] for p in (here, there)]
    assert rows[0] == rows[1]
    asked = world.asked()
    done = job()
    assert done.returncode == 0 and "no model was asked" in done.stdout and world.asked() == asked
