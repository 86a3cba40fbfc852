"""Index corpora that were not chosen for this project with the offline engine, and ask one question of each.

    python benchmarks/corpora.py                 # all corpora in ../shared/data
    python benchmarks/corpora.py DATA 2wiki      # one of the corpora in DATA

A corpus is a folder with `passages.jsonl.gz` (rows of id, title and text) or `transcripts.zip` (text files,
one document each), and with `questions.jsonl` or `questions.csv`. Each is indexed and asked one question with
three search methods. Prints a table. The exit code is 1 if a run failed, items failed, a run took longer than
--limit-s seconds, or a question got no answer. Missing corpora are skipped with a message.
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


def unpacked(corpus: Path, to: Path) -> tuple[Path, list[str]]:
    """INPUT, and the settings to read it with."""
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


def called(*words: str) -> tuple[int, float, dict[str, Any], str]:
    """Returns exit code, seconds, JSON output and standard error."""
    before = time.monotonic()
    done = subprocess.run([*CLI, *words, "--json"], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - before
    try:
        output = json.loads(done.stdout)
    except json.JSONDecodeError:
        output = {}
    return done.returncode, seconds, output, done.stderr


def tried(corpus: Path, work: Path, limit_s: float) -> list[str]:
    """Print the rows of one corpus. Returns its problems."""
    source, overrides = unpacked(corpus, work / "input")
    set_ = [word for override in overrides for word in ("--set", override)]
    root = str(work / "index")
    code, seconds, output, complaint = called("index", str(source), "--root", root, *set_)
    failed = output.get("counts", {}).get("failures")
    print(f"| {corpus.name} | index | {seconds:.0f} | exit code {code}, {failed} failed |", flush=True)
    wrong = [f"{corpus.name}: {complaint[-2000:]}"] if code or failed else []
    wrong += [f"{corpus.name}: took {seconds:.0f} s"] if seconds > limit_s else []
    for method in METHODS if not code else ():
        code, seconds, output, complaint = called(
            "query", question_of(corpus), "--root", root, "--method", method
        )
        text = " ".join(str(output.get("text")).split())
        print(f"| | {method} | {seconds:.0f} | {text[:90]} |", flush=True)
        if code or not output.get("references"):
            wrong.append(f"{corpus.name}, {method}: exit code {code}, {complaint[-500:] or text[:200]}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=DATA)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--limit-s", type=float, default=600)
    options = parser.parse_args()
    wrong: list[str] = []
    print("| corpus | | s | |\n| --- | --- | --: | --- |")
    for name in options.names:
        if not (options.data / name).is_dir():
            print(f"| {name} | | | skipped: there is no {options.data / name} |")
            continue
        with tempfile.TemporaryDirectory(prefix="corpora-") as work:
            wrong += tried(options.data / name, Path(work), options.limit_s)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
