"""Run every script of benchmarks/papers on a small corpus at the simulated endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from documents import TOP

SCRIPTS = sorted(path.stem for path in (TOP / "benchmarks" / "papers").glob("*_*.py"))
ARTICLES = {
    "Harbour loan": "The council of Varnmouth approved a harbour loan. Ifeoma Tregellis opposed it in March.",
    "Hask Marsh": "Hask Marsh was drained in 1951. Tobin Hask sold the marsh to the council of Varnmouth.",
    "Skarholm brewery": "The Skarholm brewery burned down. Petra Lind, its owner, moved to Varnmouth.",
    "Courier strike": "Couriers of Varnmouth went on strike in May. Ifeoma Tregellis spoke for the couriers.",
    "Tidal mill": "Petra Lind bought the tidal mill at Skarholm. The mill ground grain until 1960.",
    "Ferry timetable": "The ferry to Skarholm leaves at nine. The council of Varnmouth pays for the ferry.",
}
QUESTION = "Who opposed the loan that the council of Varnmouth approved?"

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_paper_script_prints_published_figures_beside_ours(script: str, tmp_path: Path) -> None:
    needs_questions = "--questions" in (TOP / "benchmarks" / "papers" / f"{script}.py").read_text("utf-8")
    corpus = tmp_path / "corpus.json"
    rows = [
        {"title": t, "body": f"{t}. {b}", "source": "News", "url": t, "category": "x", "author": "A"}
        for t, b in ARTICLES.items()
    ]
    corpus.write_text(json.dumps([row | {"published_at": "2023-10-01T00:00:00+00:00"} for row in rows]))
    evidence = [{"title": "Harbour loan", "fact": ARTICLES["Harbour loan"], "url": "Harbour loan"}]
    question = {"query": QUESTION, "answer": "Ifeoma Tregellis", "question_type": "inference_query"}
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps([question | {"evidence_list": evidence}]))
    command = [
        sys.executable,
        f"benchmarks/papers/{script}.py",
        str(corpus),
        "--work",
        str(tmp_path / "work"),
    ]
    command += ["--questions", str(questions)] if needs_questions else []
    command += ["--price", "2.5", "10"]

    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=300, check=False)

    assert not done.returncode, done.stderr[-3_000:]
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(table) > 2
    assert any(cell.split(" / ")[1] != "–" for line in table[2:] for cell in line.split("|")[2:-1])
