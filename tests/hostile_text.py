"""Arbitrary text for property tests: what corpora, models and strangers may send.

`texts()` is for code that reads text. It has no lone surrogates, like decoded files and replies, but JSON
escapes of them. Combine it with `SURROGATES` for parsers of undecoded text.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from hypothesis import strategies as st

TOP = Path(__file__).parents[1]
CORPORA = Path(os.environ.get("GRAPHRAG_RAY_CORPORA", TOP.parent / "shared" / "data"))
"""Where corpora that are not ours to bundle lie, if they do; the second tier of fuzzing takes passages of
them."""

WORDS = [
    *["the", "and", "of", "in", "said", "was", "I", "a", "Orla Quist", "Denholm", "Kestrel Marine", "AI"],
    *["Did n't", "n't", "'s", "'", "''", "``", "`", "-LRB-", "-RRB-", "...", "…", "—", "–", "&", "@-@"],
    *['"', "“", "”", "‘", "’", "«", "»", "„", "(", ")", "[", "]", "{", "}", "<", ">", "|", "##", "<|>"],
    *["Dr.", "U.S.", "e.g.", "No. 5", "$9.9 billion", "30,000", "1.0.0", "2016-02-30", "½", "²", "٣", "①"],
    *["ANN LEE:", "Q:", "STÉPHANE", "İstanbul", "ﬁ", "ß", "ſ", "Ǆ", "ﷺ", "café", "cafe\u0301", "北京市。"],
    *["東京", "한국어", "ภาษาไทย", "עִבְרִית", "العربية", "हिन्दी", "🙂", "👩‍👩‍👧", "🇳🇴", "\u200d", "\ufeff"],
    *[".", ",", ";", ":", "?", "!", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x0c", "\x85", "\u2028", "\u3000"],
    *["\x00", "\x01", "\x02", "\x1b[31m", "\u200b", "\u202e", "\u00ad", "\u0301", "\u0301\u0323", "\ufffd"],
    *["&#", "&#x110000;", "&amp;", "&#" + "9" * 4301, "%s", "{text}", "{question}", "https://u:p@h/x?k=s"],
]
MARKUP = [
    *["<div>", "</div>", "<p", "<?php echo 1 ?>", "<?mso", "<!--", "-->", "<![CDATA[", "]]>", "<script>"],
    *[
        "</script>",
        "<style>",
        "<title>",
        "<table><tr><td>",
        "<br/>",
        "<a href='",
        "<meta charset=x>",
        "<svg>",
    ],
    *["# Title", "#", "######", "# ", "```", "~~~", "---", "* ", "1. ", "> ", "**", "__", "![](", "](", "|"],
]
REPLIES = [
    *[
        '("entity"<|>',
        '("relationship"<|>',
        '("claim"<|>',
        "entity<|>",
        "<|COMPLETE|>",
        "<|complete|>",
        "<||>",
    ],
    *["##\n", "PERSON<|>", "NONE<|>", "TRUE<|>", "2014-06-11<|>", "strong)", "9)", "9" * 400, "<think>"],
    *[
        "</think>",
        "<thinking>",
        "Y",
        "N",
        "[Data: Entities (1, 2)]",
        "[Data: Reports (3",
        "[Data:",
        "+more)]",
    ],
    *["[Data: Sources (9999999999999999999999)]", "<ANSWER_HELPFULNESS> 80 </ANSWER_HELPFULNESS>", "80%"],
    *["<ANSWER", "```json\n", "\n```", '{"', '": ', '{"points": [', '{"ratings": [', '{"title": "', "null"],
    *[
        "-----Reports-----\n",
        "id,title,content\n",
        "1,a,b\n",
        '"1","' + "\n",
        "\\ud800",
        "\\u0000",
        "\\",
        "1e999",
    ],
]
KEYS = [
    *["title", "summary", "rating", "rating_explanation", "findings", "explanation", "points", "description"],
    *["score", "ratings", "id", "reason", "answer", "follow_ups", "question", "report", "Title", "text", ""],
]
GROWING = [
    *[
        " ",
        "a",
        "A",
        "0",
        "9,",
        "\n",
        "\t",
        "\r",
        "\x00",
        "\u0301",
        "\u0323\u0301",
        "\u200d",
        "字",
        "🙂",
        "ß",
    ],
    *[
        '"',
        "'",
        "''",
        "``",
        "“",
        "“a”",
        "‘",
        "’",
        "`",
        "«",
        "*",
        "**a**",
        "_",
        "-",
        "- ",
        "–",
        "…",
        ".",
        ". ",
    ],
    *["(", ")", "()", "[", "]", "{", "}", '{"a":', "[[", '["', "<", ">", "<|>", "<|", "##", "#", "# ", "\\"],
    *[
        ",",
        ", ",
        ";",
        ":",
        "a:",
        "?",
        "!",
        "/",
        "|",
        "|-",
        "@",
        "&",
        "&#",
        "&#9;",
        "&amp",
        "%",
        "=",
        "+",
        "$",
    ],
    *[
        "[Data:",
        "[Data: ",
        "[Data: Reports (1",
        "[Data: Reports (1)]",
        "[Reports: 1]",
        "[Report 1, ",
        "(Data: ",
        "(Data: Reports (1",
        "【Data：",
        "<think>",
        "</think>",
        "<ANSWER_",
    ],
    *["<div>", "</div>", "<p>", "<!--", "<?", "<b", "<td>", "<a href='", "```", "~~~\n", "# a\n", "> ", "* "],
    *["a b ", "Ab ", "A B. ", "ANN LEE: ", "He said. ", "“He said.” ", "n't ", "A.", "A. B. ", "Dr. ", "1. "],
    *[
        '("entity"<|>',
        '("entity"<|>A<|>B<|>c)##',
        '"a",',
        "a=",
        "a>=1 ",
        "http://",
        "http://a:b@",
        "::",
        "a/",
    ],
    *[
        "-----Reports-----\n",
        "id,title\n",
        '{"points":[',
        '{"title":"',
        "\\ud800",
        "e",
        "-",
        "1e",
        "2016-02-",
    ],
]
"""What is repeated in a text whose length is doubled twice, to see what reading it then costs."""

SURROGATES = st.sampled_from(["\ud800", "\udfff", "\udc80", "\udc41", "\ud83d"])


def passages(real: bool = False) -> list[str]:
    """Pieces of the demo documents; with `real`, also of the corpora next to the repository, if present."""
    files = sorted((TOP / "demo" / "corpus").rglob("*.*"))
    found = [p.read_text("utf-8") for p in files if p.suffix in (".txt", ".md", ".html")]
    for path in sorted(CORPORA.glob("*/passages.jsonl.gz")) if real else ():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found += [str(row.get("text", "")) for row in map(json.loads, lines)]
    return [text[at : at + 600] for text in found for at in range(0, min(len(text), 6_000), 600)]


def joined(pieces: list[str]) -> st.SearchStrategy[str]:
    """Some of these in any order, with or without spaces between them."""
    some = st.lists(st.sampled_from(pieces), max_size=40)
    return st.builds(lambda found, gap: gap.join(found), some, st.sampled_from([" ", "", "\n", " \n"]))


def _json() -> st.SearchStrategy[str]:
    plain = st.text(max_size=20) | st.sampled_from(WORDS + REPLIES)
    leaves = st.none() | st.booleans() | st.integers(-9, 10**9) | st.floats() | plain
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
        max_leaves=12,
    )
    return st.builds(lambda v, ascii_: json.dumps(v, ensure_ascii=ascii_), values, st.booleans())


@st.composite
def _changed(draw: st.DrawFn, whole: st.SearchStrategy[str]) -> str:
    """A text with pieces removed, repeated or inserted."""
    text = draw(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 80)))
        piece = draw(st.sampled_from(["", text[at:end] * 2, *WORDS[::3], *MARKUP[::3], *REPLIES[::3]]))
        text = text[:at] + piece + text[end:]
    return text


def _long() -> st.SearchStrategy[str]:
    return st.builds(
        lambda unit, n: unit * n, st.sampled_from(GROWING) | st.text(max_size=3), st.integers(1, 400)
    )


def texts(real: bool = False) -> st.SearchStrategy[str]:
    """Arbitrary texts; with `real`, including pieces of the corpora next to the repository."""
    return st.one_of(
        st.text(max_size=200),
        joined(WORDS),
        joined(WORDS + MARKUP),
        joined(REPLIES + WORDS[:20]),
        _changed(_json()),
        _changed(st.sampled_from(passages(real))),
        _long(),
        st.lists(joined(WORDS) | _long() | st.text(max_size=20), max_size=4).map("".join),
    )
