"""The update benchmark: changes to the corpus, and result tables."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import changed_corpus
import pytest
import update
from changed_corpus import Corpus, edit, link_files, replace_file
from processes import Totals

FILES, LINES = 4, 6
OLD = 1_000_000_000


def written(folder: Path, word: str) -> Path:
    """Write a corpus with this word in its texts, and old file times."""
    folder.mkdir()
    for file in range(FILES):
        rows = (
            {
                "title": f"Notes {file} {line}",
                "date": "2001-02-03",
                "text": "\n\n".join(f"The {word} {file} {line} {n} fell. It rained {n}." for n in range(5)),
            }
            for line in range(LINES)
        )
        path = folder / f"part-{file:05d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        os.utime(path, (OLD, OLD))
    return folder


def texts(folder: Path) -> dict[str, str]:
    lines = (line for path in sorted(folder.iterdir()) for line in path.read_text("utf-8").splitlines())
    rows = [json.loads(line) for line in lines]
    found = {row["title"]: row["text"] for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "corpus", "tree")


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    link_files(folder, tmp_path / "changed")
    return tmp_path / "changed"


@pytest.mark.parametrize("numbers", [(1, 1, 0), (2, 3, 4), (0, 0, 0)])
def test_requested_numbers_of_documents_are_changed_added_and_deleted(folder, changed, numbers):
    before = texts(folder)
    edit(Corpus(folder), changed, *numbers, seed=1)
    now = texts(changed)
    both = before.keys() & now.keys()
    assert sum(before[title] != now[title] for title in both) == numbers[0]
    assert len(now.keys() - both) == numbers[1]
    assert len(before.keys() - both) == numbers[2]
    assert all(now.values())
    assert texts(folder) == before, "the corpus itself stays as it is"


def test_only_changed_files_have_a_new_time(folder, changed):
    edit(Corpus(folder), changed, 1, 1, 0, seed=1)
    for path in sorted(changed.iterdir()):
        same = path.read_bytes() == (folder / path.name).read_bytes()
        assert (path.stat().st_mtime == OLD) is same
    assert sum(path.stat().st_mtime == OLD for path in changed.iterdir()) >= FILES - 2


def test_files_are_copied_with_their_times_where_hard_links_fail(folder, tmp_path, monkeypatch):
    def refuse(source, to):
        raise OSError("another device")

    monkeypatch.setattr(os, "link", refuse)
    link_files(folder, tmp_path / "changed")
    assert texts(tmp_path / "changed") == texts(folder)
    assert {path.stat().st_mtime for path in (tmp_path / "changed").iterdir()} == {OLD}


def test_change_depends_on_its_seed(folder, tmp_path):
    found = []
    for n, seed in enumerate((1, 1, 2)):
        link_files(folder, tmp_path / str(n))
        edit(Corpus(folder), tmp_path / str(n), 2, 2, 2, seed)
        found.append(texts(tmp_path / str(n)))
    assert found[0] == found[1] != found[2]


def test_all_texts_of_one_file_are_replaced_with_another_corpus(folder, changed, tmp_path):
    other = written(tmp_path / "other", "river")
    replace_file(Corpus(folder), changed, Corpus(other))
    before, now = texts(folder), texts(changed)
    assert now.keys() == before.keys()
    replaced = {title for title in now if now[title] != before[title]}
    assert replaced == {f"Notes {FILES // 2} {line}" for line in range(LINES)}
    assert {now[title] for title in replaced} <= set(texts(other).values())


def test_a_fifth_of_the_sentences_is_replaced_in_one_block():
    text = "\n\n".join(f"One {n}. Two {n}." for n in range(10))
    other = " ".join(f"Other {n}." for n in range(50))
    now = changed_corpus.with_passage(text, other, random.Random(1))
    kept = [part for part in now.replace("\n\n", " ").split(". ") if not part.startswith("Other")]
    assert now.count("Other") == 4
    assert len(kept) == 16
    start, end = now.index("Other"), now.rindex("Other")
    assert now[start:end].count("One") == now[start:end].count("Two") == 0


def test_table_rows_match_their_headers():
    laps = {"read": {"wall_s": 1.0, "cpu_s": 2.0, "driver_peak": 3}}
    made = update.Figures(
        Totals(wall_s=10.0, cpu_s={"driver": 4.0}, laps=laps),
        "committed",
        {"extract": 3},
        {},
        {"GET": (1, 0, 9)},
    )
    nothing = replace(made, used=Totals(wall_s=1.0), requests={"PUT": (1, 5, 0)})
    header, ruler = update.HEADER.splitlines()
    row = update.figures_row("nothing", nothing, made)
    assert header.count("|") == ruler.count("|") == row.count("|")
    assert "| 10% |" in row
    runs = {"made": made, "nothing": nothing}
    for table in (update.requests_table(runs), update.laps_table(runs)):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "| made | 1 | 0 | 1 | 0.0 | 0.0 |" in update.requests_table(runs)
