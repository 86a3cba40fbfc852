"""Index and query real corpora with the offline engine, as a smoke test.

    python benchmarks/corpora.py                 # all corpora in ../shared/data
    python benchmarks/corpora.py DATA 2wiki      # one of the corpora in DATA

A corpus is a folder with `passages.jsonl.gz` (rows with id, title and text) or `transcripts.zip` (text files,
one chunk each), and `questions.jsonl` or `questions.csv`. Each corpus is indexed and asked its first question
with three search methods. Prints a table.

Exits with code 1 if a run fails, an item fails, indexing takes longer than --limit-s seconds, or a question
gets no answer with references. A missing corpus is skipped with a note.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "shared" / "data"
NAMES = ("kevin-scott", "2wiki", "musique")
METHODS = ("global", "local", "hybrid")
CLI = [sys.executable, "-m", "graphrag_ray"]


def unpack(corpus: Path, to: Path) -> tuple[Path, list[str]]:
    """Unpack a corpus. Returns the folder to index and the settings for reading it."""
    if (passages := corpus / "passages.jsonl.gz").exists():
        to.mkdir()
        with gzip.open(passages) as packed, (to / "passages.jsonl").open("wb") as out:
            shutil.copyfileobj(packed, out)
        return to, ["input.id_column=id", "input.title_column=title"]
    with zipfile.ZipFile(corpus / "transcripts.zip") as archive:
        archive.extractall(to)
    return to, ["chunking.size=document", r"input.strip_pattern=[^\n]*?\.txt\s"]


def question_of(corpus: Path) -> str:
    """The first question of the corpus."""
    if (lines := corpus / "questions.jsonl").exists():
        return str(json.loads(lines.read_text("utf-8").partition("\n")[0])["question"])
    with (corpus / "questions.csv").open(encoding="utf-8-sig", newline="") as rows:
        return next(csv.DictReader(rows))["question_text"]


def run_cli(*words: str) -> tuple[int, float, dict[str, Any], str]:
    """Returns exit code, seconds, JSON output and standard error."""
    before = time.monotonic()
    done = subprocess.run([*CLI, *words, "--json"], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - before
    try:
        reply = json.loads(done.stdout)
    except json.JSONDecodeError:
        reply = {}
    return done.returncode, seconds, reply, done.stderr


def check_corpus(corpus: Path, work: Path, limit_s: float) -> list[str]:
    """Index and query one corpus, and print its rows. Returns a list of problems."""
    source, overrides = unpack(corpus, work / "input")
    set_ = [word for override in overrides for word in ("--set", override)]
    root = str(work / "index")
    code, seconds, reply, stderr = run_cli("index", str(source), "--root", root, *set_)
    failed = reply.get("counts", {}).get("failures")
    print(f"| {corpus.name} | index | {seconds:.0f} | exit code {code}, {failed} failed |", flush=True)
    problems = [f"{corpus.name}: {stderr[-2000:]}"] if code or failed else []
    problems += [f"{corpus.name}: took {seconds:.0f} s"] if seconds > limit_s else []
    for method in METHODS if not code else ():
        code, seconds, reply, stderr = run_cli(
            "query", question_of(corpus), "--root", root, "--method", method
        )
        text = " ".join(str(reply.get("text")).split())
        print(f"| | {method} | {seconds:.0f} | {text[:90]} |", flush=True)
        if code or not reply.get("references"):
            problems.append(f"{corpus.name}, {method}: exit code {code}, {stderr[-500:] or text[:200]}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=DATA)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--limit-s", type=float, default=600, help="maximum seconds to index a corpus")
    options = parser.parse_args()
    problems: list[str] = []
    print("| corpus | | s | |\n| --- | --- | --: | --- |")
    for name in options.names:
        if not (options.data / name).is_dir():
            print(f"| {name} | | | skipped: {options.data / name} does not exist |")
            continue
        with tempfile.TemporaryDirectory(prefix="corpora-") as work:
            problems += check_corpus(options.data / name, Path(work), options.limit_s)
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
