"""The files of a batch: questions and answers."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from web_server import serving

from graphrag_ray.base.context_records import Reference
from graphrag_ray.base.errors import UsageError
from graphrag_ray.query.methods.answer import Answer, ContextUsed, Passage, Phase
from graphrag_ray.query.question_files import (
    ANSWERS,
    AnswersFile,
    BatchQuestion,
    answer_row,
    failed_row,
    read_questions,
)


@pytest.fixture
def read(tmp_path):
    def of(name, content, most=100):
        path = tmp_path / name
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_questions(str(path), {}, most)

    return of


TWO = [BatchQuestion("1", "Who is ANNA?"), BatchQuestion("2", "Why, and since when?")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.csv", 'question\nWho is ANNA?\n"Why, and since when?"\n'),
        ("q.csv", b'\xef\xbb\xbfquestion_text\r\nWho is ANNA?\r\n"Why, and since when?"\r\n'),
        ("Q.CSV", "n;question_text\n7;Who is ANNA?\n8;Why, and since when?\n"),
        ("q.csv", "question\tn\nWho is ANNA?\t7\n\nWhy, and since when?\t8\n"),
        ("q.jsonl", '{"question": "Who is ANNA?"}\n\n{"question_text": "Why, and since when?"}\n'),
        ("q.jsonl", b'\xef\xbb\xbf{"question": "Who is ANNA?"}\n{"question": "Why, and since when?"}'),
        ("q.parquet", pa.table({"question": ["Who is ANNA?", "Why, and since when?"]})),
    ],
)
def test_questions_are_read_from_all_table_formats(read, name, content):
    assert read(name, content) == TWO


def test_question_uses_id_of_its_row(read):
    posed = read("q.csv", "id,question\nx-7,Who?\n,Why?\n")
    assert [(p.id, p.text) for p in posed] == [("x-7", "Who?"), ("2", "Why?")]
    assert [p.id for p in read("q.csv", "question_text,question_id\nWho?,x\nWhy?,y\n")] == ["x", "y"]
    numbered = read("q.parquet", pa.table({"id": [41, 42], "question": ["Who?", "Why?"]}))
    assert [p.id for p in numbered] == ["41", "42"]


def test_lone_surrogate_in_question_is_accepted(read, tmp_path):
    (posed,) = read("q.jsonl", '{"id": "n\\ud83d", "question": "Who \\ud83d?"}\n')
    assert posed == BatchQuestion("n\ufffd", "Who \ufffd?")
    file = AnswersFile.locate(str(tmp_path / "answers.parquet"), {})
    file.write([failed_row(posed, "global", "no")])
    assert pq.read_table(tmp_path / "answers.parquet")["question"].to_pylist() == ["Who \ufffd?"]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("q.csv", "question,n\nWho?,1\n ,2\n", "the question is empty"),
        ("q.csv", "question,n\nWho?,1\nWhy, then?,2\n", "3 fields where the header has 2"),
        ("q.csv", f"question\nWho?\n{'x' * 101}\n", "has 101 characters; at most 100 are allowed"),
        ("q.jsonl", '{"question": "Who?"}\n{"question": 7}\n', "the question is not a text: '7'"),
        ("q.jsonl", '{"question": "Who?"}\n{"text": "Why?"}\n', "the question is empty"),
        ("q.jsonl", '{"question": "Who?"}\n[1]\n', "line 2: a JSON array, not an object"),
        ("q.parquet", pa.table({"question": ["Who?", None]}), "the question is empty"),
    ],
)
def test_invalid_row_is_returned_with_its_fault(read, name, content, fault):
    good, bad = read(name, content)
    assert good == BatchQuestion("1", "Who?") and bad.id == "2" and fault in bad.fault


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("q.txt", "Who?", "Unsupported format '.txt'. Choose from: .jsonl, .csv, .parquet"),
        ("q.csv", "n,text\n1,Who?\n", "has no column question or question_text; it has n, text"),
        ("q.csv", "", "has no column question or question_text; it has none"),
        ("q.csv", "question\n \n", "contains no valid question: row 1: the question is empty"),
        ("q.csv", "id,question\n", "contains no valid question"),
        ("q.csv", "id,question\n7,Who?\n8,Why?\n7,When?\n", "rows 1 and 3 have the same id '7'"),
        ("q.csv", 'question\nWho?\n"Why\n', "never closed"),
        ("q.csv", b"question\n\x00\x01", "binary"),
        ("q.jsonl", '[\n{"question": "Who?"}]', "a JSON array"),
        ("q.parquet", b"PAR1", "not a parquet file"),
    ],
)
def test_file_without_valid_questions_is_rejected(read, name, content, told):
    with pytest.raises(UsageError, match="q\\.") as refused:
        read(name, content)
    assert told in str(refused.value)


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match=r"Cannot read .*none.csv: no such file"):
        read_questions(str(tmp_path / "none.csv"), {}, 100)


def test_errors_do_not_repeat_secrets_of_signed_urls():
    files = {"/q.csv": b"question\nWho is ANNA?\n", "/none.csv": b"a\n1\n", "/q.txt": b""}
    with serving(files) as web:
        at = f"http://me:correct-horse@{web.host}"
        signed = "?X-Amz-Signature=0badc0de5ea1"
        assert read_questions(f"{at}/q.csv{signed}", {}, 100) == TWO[:1]
        for name in ("none.csv", "q.txt", "gone.csv"):
            with pytest.raises(UsageError, match=f"http://{web.host}/{name}") as refused:
                read_questions(f"{at}/{name}{signed}", {}, 100)
            assert "correct-horse" not in str(refused.value) and "0badc0de5ea1" not in str(refused.value)


def test_answers_and_failures_become_rows(tmp_path):
    cited = Reference("Reports", "r"), Reference("Sources", "lost")
    used = ContextUsed("map", cited, 90, left_out=1, score=80.0)
    phases = {"map": Phase(2, 0, 100, 20, 0, 0.5), "reduce": Phase(1, 0, 10, 5, 0, None)}
    text = "ANNA [Data: Reports (3)]."
    answer = Answer("Who?", text, "global", cited, 2, True, (used,), phases, notes=("n",))
    one, other = BatchQuestion("a", "Who?"), BatchQuestion("b", "Why?")
    rows = [answer_row(one, answer, {cited[0]: 3}), failed_row(other, "global", "no")]
    file = AnswersFile.locate(str(tmp_path / "answers.parquet"), {})
    file.write(rows)
    table = pq.read_table(tmp_path / "answers.parquet")
    assert table.schema.equals(ANSWERS)
    found, failed = table.to_pylist()
    assert found["references"] == [
        {"section": "Reports", "id": "r", "human_readable_id": 3},
        {"section": "Sources", "id": "lost", "human_readable_id": None},
    ]
    assert found["contexts"][0] == {
        "phase": "map", "records": 2, "n_tokens": 90, "left_out": 1, "cut": 0, "score": 80.0
    }  # fmt: skip
    assert (found["calls"], found["tokens"], found["cost_usd"], found["error"]) == (3, 135, None, None)
    assert (failed["question_id"], failed["text"], failed["error"]) == ("b", None, "no")
    json.dumps([found, failed])


def test_every_format_has_the_same_columns_and_values(tmp_path):
    passage = Passage("a.txt", 3, 9, "=Mud. “é”,\nand", ("mud",), 7)
    answer = Answer("=Who?", "-1", "local", found=False, notes=("n\n",), passages=(passage,))
    rows = [
        answer_row(BatchQuestion("a", "=Who?"), answer, {}),
        failed_row(BatchQuestion("b", ""), "x", "no"),
    ]
    for name in ("a.parquet", "a.jsonl", "A.CSV"):
        AnswersFile.locate(str(tmp_path / name), {}).write(iter(rows))
    table = pq.read_table(tmp_path / "a.parquet")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    assert lines == table.to_pylist() and list(lines[0]) == ANSWERS.names
    with (tmp_path / "A.CSV").open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first) == ANSWERS.names
    assert (first["question"], first["text"], second["error"], second["text"]) == ("'=Who?", "'-1", "no", "")
    assert json.loads(first["passages"]) == lines[0]["passages"] and json.loads(second["contexts"]) == []


@pytest.mark.parametrize("out", ["answers", "answers.xlsx", "folder/", ".parquet", "s3://bucket/x.json"])
def test_answers_file_must_have_a_known_suffix(out):
    with pytest.raises(UsageError, match=r"must name a file that ends in \.parquet, \.jsonl, \.csv"):
        AnswersFile.locate(out, {})


def test_work_folder_is_next_to_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in ("answers.parquet", str(tmp_path / "answers.parquet")):
        file = AnswersFile.locate(out, {})
        assert file.url == str(tmp_path / "answers.parquet")
        assert file.work.url == str(tmp_path / "answers.parquet.work")
    assert AnswersFile.locate("s3://b/x/answers.parquet", {}).work.url == "s3://b/x/answers.parquet.work"
