"""Paragraphs that many documents repeat word for word."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hostile_text import texts
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.corpus.repeated_paragraphs import (
    MARK,
    MIN_BYTES,
    Span,
    find_repeats,
    leave_out,
    merge_overlapping,
    min_documents,
    paragraphs,
)

NOTICES = [
    "This presentation contains forward-looking statements. Actual results may differ materially from them "
    "because of the risks described in our reports to the commission.",
    "Настоящее уведомление содержит прогнозы. Фактические результаты могут существенно отличаться от них.",
    "本文件包含前瞻性陈述。由于各种风险和不确定性，实际结果可能与这些陈述存在重大差异。投资者不应过分依赖这些陈述。",
    "本資料には将来の見通しに関する記述が含まれています。実際の業績はこれらの見通しとは大きく異なる可能性があります。",
    "본 자료에는 미래에 대한 전망이 포함되어 있으며 실제 결과는 이러한 전망과 크게 다를 수 있습니다.",
    "تحتوي هذه الوثيقة على بيانات تطلعية وقد تختلف النتائج الفعلية اختلافا جوهريا عن هذه البيانات",
    "מסמך זה כולל הצהרות צופות פני עתיד והתוצאות בפועל עשויות להיות שונות באופן מהותי מהצהרות אלה",
    "इस दस्तावेज़ में भविष्य के बारे में कथन हैं और वास्तविक परिणाम इनसे काफी भिन्न हो सकते हैं।",
    "เอกสารนี้มีข้อความที่คาดการณ์ล่วงหน้าและผลลัพธ์ที่แท้จริงอาจแตกต่างจากข้อความเหล่านี้อย่างมีนัยสำคัญ",
]
SHORT = ["Operator:", "Thank you.", "Q&A", "東京", "| --- | --- |", "ALICE met BOB."]


def spans_to_leave_out(corpus: list[str], n_required: int) -> list[list[Span]]:
    rows = sorted((h, n, a, z) for n, text in enumerate(corpus) for a, z, h in paragraphs(text))
    hashes = np.array([row[0] for row in rows], np.uint64)
    mask = find_repeats(hashes, np.array([row[1] for row in rows], np.int64), n_required)
    found: list[list[Span]] = [[] for _ in corpus]
    for (_, n, a, z), is_left_out in zip(rows, mask.tolist(), strict=True):
        if is_left_out:
            found[n].append((a, z))
    return [merge_overlapping(sorted(spans)) for spans in found]


def fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@pytest.mark.parametrize("notice", NOTICES)
def test_a_notice_is_shown_in_the_first_document_only(notice: str):
    corpus = [f"Report {i}.\n\n{notice}\n\nMore of {i}." for i in range(3)]
    shown = [
        leave_out(text, spans)[0] for text, spans in zip(corpus, spans_to_leave_out(corpus, 3), strict=True)
    ]
    assert shown == [corpus[0], *(f"Report {i}.\n\n{MARK}\n\nMore of {i}." for i in (1, 2))]


@pytest.mark.parametrize("notice", NOTICES)
def test_case_line_breaks_and_unicode_forms_do_not_matter(notice: str):
    words = notice.split()
    half = len(words) // 2
    variants = [
        notice,
        notice.upper() if fold(notice.upper()) == fold(notice) else notice,
        unicodedata.normalize("NFD", notice),
        " ".join(words[:half]) + "\n  " + " ".join(words[half:]) if half else f"\u3000{notice}\t",
    ]
    assert len({next(h for _, _, h in paragraphs(v)) for v in variants}) == 1


def test_short_paragraphs_are_kept_however_often_they_occur():
    corpus = ["\n\n".join(SHORT)] * 50
    assert spans_to_leave_out(corpus, 3) == [[]] * 50
    table = ["\n".join(f"{i}\t{'x' * 10}\tyes" for i in range(3))] * 50
    assert spans_to_leave_out(table, 3) == [[]] * 50


def test_a_block_of_short_lines_counts_as_a_whole():
    menu = "\n".join(f"Section {i} of our site" for i in range(12))
    names = [f"Section {i} of our site\nSection {i + 1} of our site\n" for i in range(11)]
    corpus = [f"{menu}\n\nText {i}." for i in range(3)] + names
    assert [bool(spans) for spans in spans_to_leave_out(corpus, 3)] == [False, True, True] + [False] * 11


def test_repetition_within_one_document_does_not_count():
    corpus = ["\n\n".join(NOTICES[:1] * 20), "\n\n".join(NOTICES[:1] * 20)]
    assert spans_to_leave_out(corpus, 3) == [[], []]


def test_a_chunk_without_other_text_has_nothing_to_show():
    text = f"  {NOTICES[0]}\n\n***\n\n{NOTICES[1]}\n"
    spans = [(a, z) for a, z, _ in paragraphs(text)]
    assert leave_out(text, spans) == ("", len(NOTICES[0]) + len(NOTICES[1]))
    assert leave_out("***", []) == ("***", 0)


@given(st.integers(0, 100_000))
def test_the_number_of_documents_never_falls(n: int):
    assert 3 <= min_documents(n) <= min_documents(n + 1) <= 10


@given(texts())
def test_paragraphs_are_nested_trimmed_and_long_enough(text: str):
    found = paragraphs(text)
    for start, end, _ in found:
        assert text[start:end] == text[start:end].strip() != ""
        assert "\n\n" not in text[start:end]
    for (a, z, h), (b, y, g) in pairwise(found):
        assert b >= z or (a <= b and y <= z and h != g)


pieces = st.one_of(st.sampled_from([*NOTICES, *SHORT]), texts())
documents = st.lists(st.tuples(pieces, st.sampled_from(["\n", "\n\n", " "])), max_size=6).map(
    lambda parts: "".join(piece + gap for piece, gap in parts)
)


@given(st.lists(documents, min_size=1, max_size=8), st.integers(1, 4))
def test_every_line_is_shown_somewhere(corpus: list[str], n_required: int):
    left_out = spans_to_leave_out(corpus, n_required)
    shown = []
    for text, spans in zip(corpus, left_out, strict=True):
        ends = [0, *(z for _, z in spans)]
        starts = [*(a for a, _ in spans), len(text)]
        shown += [fold(text[end:start]) for end, start in zip(ends, starts, strict=True)]
    lines = {fold(line) for text in corpus for line in text.splitlines()}
    assert all(any(line in part for part in shown) for line in lines)


@given(st.lists(documents, min_size=1, max_size=8), st.data())
def test_chunks_leave_out_what_the_document_leaves_out(corpus: list[str], data: st.DataObject):
    for text, spans in zip(corpus, spans_to_leave_out(corpus, 2), strict=True):
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
        counts = [leave_out(text[a:z], spans, a)[1] for a, z in pairwise(cuts)]
        assert sum(counts) == leave_out(text, spans)[1] == sum(z - a for a, z in spans)


def test_minimum_size_is_in_bytes():
    assert not paragraphs("x" * (MIN_BYTES - 1)) and paragraphs("x" * MIN_BYTES)
    assert paragraphs("字" * (MIN_BYTES // 3)) and not paragraphs("字" * (MIN_BYTES // 3 - 1))
