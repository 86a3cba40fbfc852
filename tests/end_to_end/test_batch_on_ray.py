"""A batch on a real Ray cluster. `test_jobs.py` runs it as a job."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import toy_model
from click.testing import CliRunner
from endpoint import Answer
from world import World

from graphrag_ray.cli.command_line import main
from graphrag_ray.query.batch import answer_batch

NAMES = ("ALICE", "HEIDI", "ERIN", "JUDY", "IVAN", "DAVE")


def test_a_batch_on_ray_gives_the_same_answers_and_pays_nothing_twice(
    town: World, on_ray: None, tmp_path: Path
):
    world = town
    questions = tmp_path / "questions.csv"
    questions.write_text("id,question\n" + "".join(f"{n},What about {n} ?\n" for n in NAMES))
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    asked = world.asked()
    answer_batch(world.open(), str(questions), str(here))
    wanted = world.prompts(asked)
    world.endpoint.respond = lambda body: Answer(toy_model.respond(body), delay_s=0.2)

    files = ["--root", world.root, "--batch", questions, "--out", there, "--set", "run.journal_flush_s=0.1"]
    asked = world.asked()
    done = CliRunner().invoke(main, ["query", "--ray", *map(str, files)])
    assert done.exit_code == 0, done.stderr
    assert f"6 questions: {there}" in done.stdout and "Traceback" not in done.stderr
    assert world.prompts(asked) == wanted and world.endpoint.peak_in_flight >= 4
    rows = [[r | {"seconds": 0} for r in pq.read_table(p).to_pylist()] for p in (here, there)]
    assert rows[0] == rows[1]
    asked = world.asked()
    answer_batch(world.open(), str(questions), str(there))
    assert world.asked() == asked, "whoever asks"
