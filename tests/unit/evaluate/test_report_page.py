"""The report page of a comparison: its content, and safe handling of hostile text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from examples import fewer
from hostile_text import SURROGATES, texts
from hypothesis import example, given
from hypothesis import strategies as st
from sample_evaluation import ANSWERS, CONDITIONS, CRITERIA, sample, table
from selectolax.lexbor import LexborHTMLParser, LexborNode

from graphrag_ray.evaluate import report_page as page_module
from graphrag_ray.evaluate.comparison import Comparison
from graphrag_ray.evaluate.judging.head_to_head import JUDGEMENTS, RELIABILITY, WIN_RATES
from graphrag_ray.evaluate.known_answers import FIGURES
from graphrag_ray.evaluate.report_page import (
    HEIGHT,
    MAX_MARKDOWN,
    MAX_TICKS,
    WIDTH,
    amount_axis,
    clean,
    decimal,
    dollars,
    probability,
    render_markdown,
    report_page,
    scatter_plot,
    short_count,
)

HOSTILE = [
    "<script>alert(1)</script>",
    '</script><script src="https://evil.example/x.js"></script><!--',
    '"><img src=x onerror=alert(1)><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!-- <script>",
    "]]></style></title><iframe srcdoc=x>",
    "&lt;script&gt; &#60;b&#62; &",
    "[x](javascript:alert(1)) ![y](https://evil.example/p.png) <javascript:alert(1)>",
    "[x](https://e.example 'a\"onclick=\"b') [y]\n\n[y]: data:text/html,z",
    "\u2028\u2029\x00\x0b\x1b[31m\u202e\ufeff\ufffe",
    '=HYPERLINK(1)\r\n|a|b|\n|:-:|-:|\n|1|2|\n\n```x" onload=y\nz\n```',
]


def parsed(evaluation: Comparison) -> LexborHTMLParser:
    return LexborHTMLParser(report_page(evaluation))


def structure(evaluation: Comparison) -> list[tuple[str, list[str]]]:
    """Return elements and the names of their attributes, in order."""
    root = parsed(evaluation).root
    assert root is not None
    return [(str(node.tag), sorted(node.attributes)) for node in root.traverse()]


def rows(page: LexborHTMLParser, caption: str) -> list[list[str]]:
    """Return the text of a table's cells."""
    found = page.css_first(f'[aria-label="{caption}"] table')
    assert found is not None, caption
    return [[cell.text() for cell in row.css("th, td")] for row in found.css("tr")]


def cells(page: LexborHTMLParser, criterion: str = "comprehensiveness") -> dict[str, LexborNode]:
    found = page.css(f'[aria-label="{criterion}: win rates of rows over columns"] td[data-pair]')
    return {str(cell.attributes["data-pair"]): cell for cell in found}


def data(page: LexborHTMLParser) -> dict[str, Any]:
    """Return the script's data by the ids of its blocks."""
    scripts = page.css('script[type="application/json"]')
    return {str(script.attributes["id"]): json.loads(script.text()) for script in scripts}


def changed(found: pa.Table, **columns: Any) -> pa.Table:
    """Set a column to one value in all rows."""
    return table(found.schema, [row | columns for row in found.to_pylist()])


def test_mirrored_cells_add_up_to_100():
    found = cells(parsed(sample()))
    assert {pair: cell.text()[:2] for pair, cell in found.items()} == {
        **{"0 1": "42", "0 2": "34", "1 2": "42"},
        **{"1 0": "58", "2 0": "66", "2 1": "58"},
    }
    title = "Win rate 66.0; 95% interval 61.0 to 71.0; Questions 3; Ties 12%; Failed 0; z 3.50; p < .001"
    assert str(found["2 0"].attributes["title"]).startswith(f"SS over C0: {title}; p after Holm < .001")
    assert "34.0; 95% interval 29.0 to 39.0" in str(found["0 2"].attributes["title"])
    assert "z −3.50" in str(found["0 2"].attributes["title"])
    assert {found[pair].attributes["class"] for pair in ("0 1", "1 0")} == {"rate under r42", "rate over r58"}


def test_only_the_condition_that_is_significantly_better_is_marked():
    page = parsed(sample())
    marked = [pair for pair, cell in cells(page).items() if cell.css_first("b")]
    assert marked == ["2 0"] and cells(page)["2 0"].text() == "66* significantly better"
    legend = page.css_first(".legend")
    assert legend is not None and "62* significantly better: the row’s condition" in legend.text()


@pytest.mark.parametrize("changes", [{"p_holm": 0.05}, {"p_holm": None}, {"win_rate": 50.0}, {"z": 1.75}])
def test_insignificant_rates_are_not_marked(changes: dict[str, Any]):
    # In the last case, ranks and mean disagree.
    page = parsed(sample(win_rates=changed(sample().tables["win_rates"], **changes)))
    assert not page.css("tbody b")


def test_pair_without_a_verdict_has_no_rate():
    unknown = dict.fromkeys(["win_rate", "low", "high", "z", "p", "p_holm", "normal_p", "ties"])
    page = parsed(sample(win_rates=changed(sample().tables["win_rates"], **unknown, questions=0)))
    assert {cell.text() for cell in cells(page).values()} == {"–"}
    assert rows(page, "comprehensiveness: figures of each pair")[1][:3] == ["C0 over TS", "–", "–"]
    page = parsed(sample(win_rates=changed(sample().tables["win_rates"], **dict.fromkeys(unknown, math.nan))))
    assert {cell.text() for cell in cells(page).values()} == {"–"}


def test_all_numbers_of_a_pair_are_in_a_table():
    found = rows(parsed(sample()), "directness: figures of each pair")
    heads = ["Pair", "Win rate", "95% interval", "Questions", "Ties", "Failed", "z", "p", "p after Holm"]
    assert found[0] == [*heads, "Shapiro–Wilk p"]
    assert found[1] == [
        "C0 over TS",
        "42.0",
        "37.0 to 47.0",
        "3",
        "12%",
        "1",
        "−1.75",
        ".080",
        ".160",
        ".002",
    ]
    assert len(found) == 4


def test_heading_names_conditions_and_judge():
    page = parsed(sample(warnings=["few questions", "one more"]))
    facts = {
        dt.text(): dd.text() for dt, dd in zip(page.css(".facts dt"), page.css(".facts dd"), strict=True)
    }
    assert facts == {
        "Conditions": "C0, TS, SS",
        "Questions": "3",
        "Replicates": "2",
        "Judgements": "36, 2 of them without a verdict",
        "Judge": "gpt-5-mini",
    }
    assert [item.text() for item in page.css(".warnings li")] == ["few questions", "one more"]
    assert page.css_first("h1").text() == "Podcasts, snapshot 7"  # type: ignore[union-attr]
    assert not page.css(".offline")


def test_offline_judge_is_stated_prominently():
    page = parsed(sample(offline=True))
    notice = page.css_first(".offline strong")
    assert notice is not None and notice.text() == "No language model judged."
    assert page.css(".facts dd")[-1].text() == "no language model"


def test_reliability_of_the_judge_is_explained():
    page = parsed(sample())
    found = rows(page, "Reliability of the judge, by criterion")
    assert found[1] == ["comprehensiveness", "17", "1", "56%", "24%", "81%"]
    explained = {term.text() for term in page.css("#reliability-of-the-judge dt")}
    assert explained == set(found[0]) - {"Criterion", "Verdicts"}


def test_claims_have_bars_and_their_agreement_with_the_judge():
    page = parsed(sample())
    found = rows(page, "Claims and clusters of each condition")
    assert found[0][2:] == ["Claims", "Clusters at .5", "Clusters at .6", "Clusters at .7", "Clusters at .8"]
    assert found[2] == ["TS", "3", "29.0", "25.0", "21.0", "17.0", "13.0"]
    bars = [bar.attributes["width"] for bar in page.css(".bar rect")]
    assert bars[0] == "100.0" and bars[5] == "96.7"
    agreed = rows(page, "Agreement of claims and clusters with the judge")
    assert agreed[1] == ["Claims", "comprehensiveness", "78%", "40", "90%"]
    tests = rows(page, "Differences in claims and clusters")
    assert tests[2] == ["Claims", "C0", "SS", "3", "2.0", ".750"]


def test_page_without_claims_has_no_claims_section():
    page = parsed(sample(claim_counts=None, agreement=None, count_tests=None))
    assert not page.css("#claims") and not page.css('a[href="#claims"]')
    assert not parsed(sample(agreement=None, count_tests=None)).css("#claims h3")


def test_costs_are_plotted_against_mean_win_rates():
    page = parsed(sample())
    found = rows(page, "Costs and mean win rates")
    # A condition without answers has no cost per question.
    assert found == [
        ["Condition", "Cost per question", "comprehensiveness", "directness"],
        ["C0", "$0.010", "38.0", "38.0"],
        ["TS", "–", "50.0", "50.0"],
        ["SS", "$0.030", "62.0", "62.0"],
    ]
    plots = page.css("figure")
    assert [plot.css_first("figcaption").text() for plot in plots] == [*CRITERIA]  # type: ignore[union-attr]
    assert [dot.text() for dot in plots[0].css("circle title")] == ["C0: $0.01, 38.0", "SS: $0.03, 62.0"]
    assert [label.text() for label in plots[0].css(".label")] == ["C0", "SS"]


@pytest.mark.parametrize("cost", [None, 0.0])
def test_tokens_replace_unknown_or_zero_costs(cost: float | None):
    page = parsed(sample(conditions=changed(sample().tables["conditions"], cost_usd=cost)))
    assert rows(page, "Costs and mean win rates")[0][1] == "Tokens per question"
    assert rows(page, "Costs and mean win rates")[1][1] == "5k"
    assert rows(page, "Conditions and what they cost")[1][7] == ("unknown" if cost is None else "$0")


def test_one_unknown_cost_switches_to_tokens_and_imported_answers_have_no_cost():
    conditions = sample().tables["conditions"].to_pylist()
    conditions[2]["cost_usd"] = None
    page = parsed(sample(conditions=table(CONDITIONS, conditions)))
    assert rows(page, "Costs and mean win rates")[3][:2] == ["SS", "15k"]
    conditions[2]["tokens"] = None
    page = parsed(sample(conditions=table(CONDITIONS, conditions)))
    assert rows(page, "Costs and mean win rates")[1][:2] == ["C0", "$0.010"]
    assert rows(page, "Costs and mean win rates")[3][:2] == ["SS", "–"]


def test_conditions_are_listed_with_their_cost():
    found = rows(parsed(sample()), "Conditions and what they cost")
    settings = "level: 2\nmap_tokens: 8000"
    assert found[1][:3] == ["C0", "global", "–"]
    assert found[3] == [
        *[
            "SS",
            "global",
            "2",
            "3",
            "0",
            "90",
            "45,000",
            "$0.090",
            "$0.030",
            "6.8",
            "10.5",
            "302.0",
            settings,
        ],
    ]
    levels = (
        sample().tables["conditions"].drop_columns("level").append_column("level", pa.array(["", "C1", "C2"]))
    )
    page = parsed(sample(conditions=levels))
    assert [row[2] for row in rows(page, "Conditions and what they cost")] == ["Level", "–", "C1", "C2"]


@pytest.mark.parametrize("text", HOSTILE)
def test_scores_show_hostile_types_and_measures_as_text(text: str):
    row = {
        "condition": "C0",
        "type": text,
        "measure": text,
        "questions": 2,
        "mean": 0.5,
        "low": 0.25,
        "high": 1.0,
    }
    tables = {**sample().tables, "figures": table(FIGURES, [row])}
    page = parsed(replace(sample(), tables=tables))
    heading = page.css_first("#scores h3")
    assert heading is not None and heading.text() == f"Type: {clean(text)}".replace("\r\n", "\n")
    assert [len(page.css(name)) for name in ("script", "img", "iframe")] == [
        len(parsed(sample()).css(name)) for name in ("script", "img", "iframe")
    ]
    assert "0.500 0.250 to 1.000; –; 2" in page.css_first("#scores td").text()  # type: ignore[union-attr]


def test_indexes_are_listed_with_their_cost():
    found = rows(parsed(sample()), "Indexes and what they cost to build")
    assert found[1] == ["/indexes/podcasts", "7", "72", "1,669", "9,000", "5,000,000", "$12.50", "3,600.5"]
    two = table(CONDITIONS, [{"name": name, "index": f"/indexes/{name}"} for name in ("C0", "TS")])
    columns = rows(parsed(sample(conditions=two)), "Conditions and what they cost")
    assert [row[3] for row in columns] == ["Index", "/indexes/C0", "/indexes/TS"]


def test_script_receives_answers_and_verdicts():
    page = parsed(sample())
    found = data(page)
    assert found["names"] == {"conditions": ["C0", "TS", "SS"], "criteria": [*CRITERIA]}
    first = found["question-0"]
    assert first["answers"][0].startswith("<h5>Themes</h5>\n<p><strong>C0</strong> of part 0: <a href=")
    assert first["answers"][1] is None and first["errors"] == {"1": "the endpoint gave up"}
    result = first["reasons"]
    a, b, criterion, letters, numbers = first["judged"][0]
    # No verdict; then C0, which was presented second.
    assert (a, b, criterion, letters) == (0, 1, 0, "xA")
    assert [result[n] for n in numbers] == [
        "no JSON in the reply",
        "Reason 1 for comprehensiveness, question 0.",
    ]
    assert found["question-1"]["judged"][0][3] == "aT"
    assert [label.text() for label in page.css("fieldset label")][2] == "What are the themes of part 2?"


def test_repeated_reason_is_stored_once():
    page = parsed(sample(judgements=changed(sample().tables["judgements"], reason="as before", winner="")))
    assert data(page)["question-2"]["reasons"] == ["as before"]


def test_verdicts_do_not_depend_on_the_order_of_conditions():
    turned = [
        row | {"first": row["second"], "second": row["first"], "swapped": not row["swapped"]}
        for row in sample().tables["judgements"].to_pylist()
    ]
    assert data(parsed(sample(judgements=table(JUDGEMENTS, turned)))) == data(parsed(sample()))


def test_questions_beyond_the_size_limit_include_only_verdicts(
    monkeypatch: pytest.MonkeyPatch,
):
    whole = data(parsed(sample()))
    size = len(json.dumps(whole["question-0"]))
    monkeypatch.setattr(page_module, "MAX_BYTES", int(size * 1.5))
    page = parsed(sample())
    found = data(page)
    assert found["question-0"] == whole["question-0"]
    assert found["question-1"] == {"judged": [row[:4] for row in whole["question-1"]["judged"]]}
    assert "reasons for 1 of the 3 questions" in page.css_first("section .warnings").text()  # type: ignore[union-attr]
    monkeypatch.setattr(page_module, "MAX_BYTES", 10**7)
    assert not parsed(sample()).css("section .warnings")


def test_two_conditions_and_one_question_suffice():
    page = parsed(sample(["a", "b"], questions=1, replicates=1))
    assert len(cells(page)) == 2 and len(page.css("fieldset input")) == 1
    chosen = {side: page.css(f"#{side} option[selected]") for side in ("left", "right")}
    assert {side: [option.text() for option in found] for side, found in chosen.items()} == {
        "left": ["a"],
        "right": ["b"],
    }


def test_many_conditions_have_wide_matrices_with_upright_names():
    page = parsed(sample([f"condition-{n}" for n in range(20)], questions=1, replicates=1))
    assert page.css(".matrices.wide .matrix.upright") and len(cells(page)) == 380
    assert len(page.css("figure:first-of-type circle")) == 19
    small = parsed(sample())
    assert not small.css(".wide") and not small.css(".upright")


def test_page_reports_that_everything_failed():
    judgements = changed(sample().tables["judgements"], winner=None, reason=None, error="no reply")
    answers = changed(sample().tables["answers"], text=None, error="refused")
    page = parsed(
        sample(
            judgements=judgements,
            answers=answers,
            win_rates=WIN_RATES.empty_table(),
            reliability=RELIABILITY.empty_table(),
        )
    )
    assert "No data." in page.css_first("#reliability-of-the-judge").text()  # type: ignore[union-attr]
    assert not page.css("circle") and "No condition has both" in page.css_first("figure").text()  # type: ignore[union-attr]
    assert data(page)["question-1"]["answers"] == [None] * 3
    assert set(data(page)["question-1"]["judged"][0][3].lower()) == {"x"}


def test_empty_tables_still_render_a_page():
    empty = {
        name: schema.empty_table() for name, schema in (("conditions", CONDITIONS), ("answers", ANSWERS))
    }
    schemas = {"win_rates": WIN_RATES, "reliability": RELIABILITY, "judgements": JUDGEMENTS}
    empty |= {name: schema.empty_table() for name, schema in schemas.items()}
    page = parsed(sample(**empty, criteria={}, claim_counts=sample().tables["claim_counts"].slice(0, 0)))
    assert "no answers to compare" in page.css_first("#questions-and-answers").text()  # type: ignore[union-attr]


def test_judged_question_without_text_is_named_by_its_id():
    page = parsed(sample(answers=ANSWERS.empty_table()))
    assert [label.text() for label in page.css("fieldset label")] == ["q0", "q1", "q2"]
    assert data(page)["question-0"]["answers"] == [None] * 3


def test_same_evaluation_renders_the_same_page():
    assert report_page(sample()) == report_page(sample())


def test_page_policy_allows_only_its_own_style_and_script():
    page = parsed(sample())
    hashes = [
        base64.b64encode(hashlib.sha256(node.text().encode()).digest()).decode()
        for node in (page.css_first("style"), page.css("script")[-1])
        if node is not None
    ]
    policy = page.css_first('meta[http-equiv="Content-Security-Policy"]')
    assert policy is not None and policy.attributes["content"] == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert page.css("script")[:-1] == page.css('script[type="application/json"]')
    assert page.root is not None
    attributes = [(name, value) for node in page.root.traverse() for name, value in node.attributes.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("style", "src")]
    assert all(str(value).startswith("#") for name, value in attributes if name == "href")
    assert not re.search(
        r"url\(|@import|fetch\(|https?:", page.css_first("style").text() + page.css("script")[-1].text()
    )  # type: ignore[union-attr]


def test_page_is_accessible():
    page = parsed(sample())
    assert {th.attributes.get("scope") for th in page.css("th")} == {"row", "col"}
    assert len(page.css("caption")) == len(page.css("table"))
    labelled = {label.attributes.get("for") for label in page.css("label")}
    assert {node.attributes["id"] for node in page.css("select, input[type=search]")} <= labelled
    assert all(
        node.attributes.get("aria-label") for node in page.css('svg[role="img"], nav, [role="region"]')
    )
    targets = {node.attributes["id"] for node in page.css("[id]")}
    assert {str(link.attributes["href"])[1:] for link in page.css("nav a")} <= targets


def hostile(text: str) -> Comparison:
    """Put the text everywhere that text can occur. Only Arrow excludes lone surrogates."""
    stored = re.sub("[\ud800-\udfff]", "?", text)
    names = [f"{stored}{n}" for n in range(3)]
    criteria = {name: f"{stored} {name}" for name in CRITERIA}
    renamed = dict(zip(("C0", "TS", "SS"), names, strict=True)) | criteria

    def replaced(found: pa.Table) -> pa.Table:
        free = ("reason", "error", "text", "question", "question_id", "settings", "method", "measure")
        made = [
            {k: f"{stored}{v}" if k in free and v is not None else renamed.get(v, v) for k, v in row.items()}
            for row in found.to_pylist()
        ]
        return table(found.schema, made)

    given = sample()
    tables = ("conditions", "win_rates", "reliability", "judgements", "answers", "agreement", "count_tests")
    claims = pa.Table.from_pylist(
        [row | {"condition": renamed[row["condition"]]} for row in given.tables["claim_counts"].to_pylist()]
    )
    return replace(
        given,
        title=f"{text}.",
        description=f"{text}.",
        judge=text,
        warnings=[text],
        criteria=dict.fromkeys(criteria.values(), text),
        tables={"claim_counts": claims} | {name: replaced(given.tables[name]) for name in tables},
    )


EXPECTED = structure(hostile("x"))


@fewer(2)
@given(
    st.builds(lambda text, other: text + other, texts(), SURROGATES | st.just("") | st.sampled_from(HOSTILE))
)
@example("".join(HOSTILE))
@example("\ud800</script>")
def test_text_adds_no_elements_or_attributes(text: str):
    assert structure(hostile(text)) == EXPECTED


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_displayed_verbatim(text: str):
    page = parsed(hostile(text))
    # HTML parsers normalise line breaks like this.
    shown = clean(text).replace("\r\n", "\n")
    assert page.css_first("h1").text() == f"{shown}."  # type: ignore[union-attr]
    assert page.css_first(".warnings li").text() == shown  # type: ignore[union-attr]
    found = data(page)
    assert found["names"]["conditions"] == [f"{clean(text)}{n}" for n in range(3)]
    assert f"{clean(text)}no JSON in the reply" in found["question-0"]["reasons"]
    report_page(hostile(text)).encode("utf-8")


SHOWN = {
    *[
        "p",
        "a",
        "strong",
        "em",
        "s",
        "code",
        "pre",
        "blockquote",
        "ul",
        "ol",
        "li",
        "hr",
        "br",
        "h4",
        "h5",
        "h6",
    ],
    *["table", "thead", "tbody", "tr", "th", "td"],
}


@given(texts() | st.lists(st.sampled_from(HOSTILE)).map("\n".join) | SURROGATES)
@example("\n\n".join(HOSTILE))
def test_answers_contain_only_harmless_elements(text: str):
    for node in LexborHTMLParser(render_markdown(text)).css("body *"):
        assert node.tag in SHOWN
        given = dict(node.attributes)
        if node.tag == "a":
            assert re.match("https?://", str(given.pop("href")))
            assert given == {"rel": "noopener noreferrer", "target": "_blank"}
        else:
            assert given.keys() <= ({"start"} if node.tag == "ol" else set())


def test_markdown_is_rendered_without_images_and_without_other_links():
    assert render_markdown("# A *b*") == "<h4>A <em>b</em></h4>\n"
    link = '<a href="https://e.example/?a&amp;b" rel="noopener noreferrer" target="_blank">x</a>'
    assert render_markdown("[x](https://e.example/?a&b 'title')") == f"<p>{link}</p>\n"
    assert render_markdown("![a chart](https://e.example/c.png)") == "<p>a chart</p>\n"
    for other in (
        "javascript:alert(1)",
        "//e.example",
        "/a",
        "#a",
        "data:text/html,x",
        "mailto:a@b.c",
        "https:e",
    ):
        assert render_markdown(f"[x]({other})") == f"<p>[x]({other})</p>\n"
    assert render_markdown("a <b>c</b>") == "<p>a &lt;b&gt;c&lt;/b&gt;</p>\n"


def test_very_long_text_is_displayed_verbatim():
    assert render_markdown("*" * (MAX_MARKDOWN + 1)) == f"<pre>{'*' * (MAX_MARKDOWN + 1)}</pre>"


POINTS = st.tuples(st.text(max_size=30), st.floats(0, 1e12), st.floats(0, 100))


@given(st.lists(POINTS, min_size=1, max_size=20))
@example([("a", 0.0, 0.0)])
@example([("a", 1e-9, 50.0), ("b", 1e9, 100.0)])
def test_every_dot_is_inside_the_plot(points: list[tuple[str, float, float]]):
    plot = scatter_plot(points, short_count)
    assert len(plot["dots"]) == len(points) == len(plot["labels"])
    assert all(40 <= dot["x"] <= WIDTH and 0 <= dot["y"] <= HEIGHT - 40 for dot in plot["dots"])


@pytest.mark.parametrize(
    ("values", "ticks", "log"),
    [
        ([1.0, 10.0], [0, 2, 4, 6, 8, 10], False),
        ([0.001, 0.05], [0.001, 0.002, 0.005, 0.01, 0.02, 0.05], True),
        ([1e-6, 1.0], [1e-6, 1e-4, 1e-2, 1.0], True),
        ([0.0, 100.0], [0, 20, 40, 60, 80, 100], False),
        ([0.0], [0, 0.2, 0.4, 0.6, 0.8, 1.0], False),
    ],
)
def test_amounts_of_different_magnitude_get_a_logarithmic_axis(
    values: list[float], ticks: list[float], log: bool
):
    *_, found, is_log = amount_axis(values)
    assert is_log is log and found == pytest.approx(ticks)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1))
def test_axis_has_a_few_ticks(values: list[float]):
    low, high, ticks, _ = amount_axis(values)
    assert 1 <= len(ticks) <= MAX_TICKS + 1
    assert low <= min(ticks) and max(ticks) <= high


@pytest.mark.parametrize("rate", [0.0, 50.0, 100.0])
def test_labels_of_nearby_dots_do_not_overlap_and_stay_in_the_picture(rate: float):
    points = [(f"condition {n}", 1.0 + n / 50, rate) for n in range(9)]
    labels = scatter_plot(points, short_count)["labels"]
    places = {(label["x"], label["y"], label["anchor"]) for label in labels}
    assert len(places) == 9 and all(0 < label["y"] < HEIGHT for label in labels)


def test_numbers_are_short():
    assert [dollars(usd) for usd in (None, 0.0, 0.00312, 0.5, 12.0, 1204.5)] == [
        *["unknown", "$0", "$0.0031", "$0.50", "$12.00", "$1,204.50"],
    ]
    assert [probability(p) for p in (None, 0.0, 0.0009, 0.05, 0.9994, 1.0)] == [
        *["–", "< .001", "< .001", ".050", ".999", "1"],
    ]
    assert [short_count(n) for n in (0, 0.005, 950, 12_500, 3e6, 2e9)] == [
        "0",
        "0.005",
        "950",
        "12.5k",
        "3M",
        "2G",
    ]
    assert (decimal(-1.234, 2), decimal(None)) == ("−1.23", "–")
