"""What a comparison of conditions found, as one HTML page that needs no network.

The page's policy allows its own style and script, by their hashes, and nothing else. The same evaluation
makes the same page.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import pyarrow as pa

from graphrag_ray.base.wording import plural
from graphrag_ray.evaluate.judging.judgements import SIGNIFICANT
from graphrag_ray.evaluate.question_blocks import question_blocks
from graphrag_ray.evaluate.report_figures import (
    NONE,
    count,
    decimal,
    dollars,
    percent,
    probability,
    short_count,
)
from graphrag_ray.evaluate.safe_html import Markup, clean, element, json_script
from graphrag_ray.evaluate.scatter_plot import scatter_plot

WIDE_FROM = 9
"""From so many conditions on, a matrix has the whole width."""
SHORT_NAME = 6
"""Characters; where names are longer, those of a matrix's columns are upright."""
MEASURES: Mapping[str, str] = {
    "claims": "Claims",
    **{f"clusters_0_{n}": f"Clusters at .{n}" for n in (5, 6, 7, 8)},
}

FigureRow: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Conditions that answered the same questions, and what a judge said of their answers.

    title        what was compared: the index's name and snapshot
    description  of the corpus; may be ""
    judge        the model that judged
    offline      no language model judged; the page says so at its top
    conditions   name, method, level, settings (text), questions, failed, calls, tokens, cost_usd (null:
                 unknown), model_seconds, words (mean per answer)
    criteria     name -> the text that the judge was given
    win_rates    of judgements.WIN_RATES; so are reliability and judgements
    answers      condition, question_id, question, text (Markdown; null or blank: failed), error
    claims       condition, answers, and means per answer: claims, clusters_0_5, clusters_0_6, clusters_0_7,
                 clusters_0_8; None where claims were not asked for
    agreement    measure (a column of claims), criterion, cases, agreement (share of the cases)
    """

    title: str
    description: str
    judge: str
    offline: bool
    warnings: Sequence[str]
    conditions: pa.Table
    criteria: Mapping[str, str]
    win_rates: pa.Table
    reliability: pa.Table
    judgements: pa.Table
    answers: pa.Table
    claims: pa.Table | None
    agreement: pa.Table | None

    @cached_property
    def condition_names(self) -> list[str]:
        """In the order of their table; those that only other tables have come last."""
        pairs = (table[end] for table in (self.win_rates, self.judgements) for end in ("first", "second"))
        return _distinct(self.conditions["name"], self.answers["condition"], *pairs)

    @cached_property
    def criterion_names(self) -> list[str]:
        tables = (self.win_rates, self.reliability, self.judgements)
        return list(dict.fromkeys([*self.criteria, *_distinct(*(table["criterion"] for table in tables))]))

    @cached_property
    def questions(self) -> dict[str, str]:
        """id -> question"""
        columns = (self.answers[name].to_pylist() for name in ("question_id", "question"))
        asked = dict(zip(*columns, strict=True))
        return {id_: asked.get(id_) or id_ for id_ in (*asked, *_distinct(self.judgements["question_id"]))}

    @cached_property
    def rates(self) -> dict[tuple[str, str, str], FigureRow]:
        """(criterion, row, column) -> a row of WIN_RATES whose first condition is the row's."""
        found = {}
        for row in _rows(self.win_rates):
            found[row["criterion"], row["first"], row["second"]] = row
            found[row["criterion"], row["second"], row["first"]] = _mirrored(row)
        return found

    def mean_rate(self, criterion: str, condition: str) -> float | None:
        """Mean win rate over all other conditions."""
        rates = (self.rates.get((criterion, condition, other), {}) for other in self.condition_names)
        known = [row["win_rate"] for row in rates if row.get("win_rate") is not None]
        return fmean(known) if known else None

    def per_question(self, column: str) -> dict[str, float]:
        """A total of the conditions' table, divided by the answers that there are, where both are known."""
        pairs = zip(self.answers["condition"].to_pylist(), self.answers["text"].to_pylist(), strict=True)
        answered = Counter(condition for condition, text in pairs if text and text.strip())
        return {
            row["name"]: row[column] / answered[row["name"]]
            for row in _rows(self.conditions)
            if row[column] is not None and row["name"] in answered
        }


def report_page(evaluation: Evaluation) -> str:
    """The page. It can be written as UTF-8, whatever the texts in it."""
    names = evaluation.condition_names, evaluation.criterion_names
    blocks, complete = question_blocks(
        evaluation.questions, *names, evaluation.answers, evaluation.judgements
    )
    sections = {
        "Win rates": _win_rates(evaluation),
        "Reliability of the judge": _reliability(evaluation),
        "Claims": _claims(evaluation),
        "Cost against quality": _cost_against_quality(evaluation),
        "Conditions": _conditions(evaluation),
        "Questions and answers": _questions(evaluation, complete),
    }
    shown = [(title, title.lower().replace(" ", "-"), [*parts]) for title, parts in sections.items()]
    links = [element("li", element("a", title, href=f"#{id_}")) for title, id_, parts in shown if parts]
    found = [element("section", element("h2", title), *parts, id=id_) for title, id_, parts in shown if parts]
    known = dict(zip(("conditions", "criteria"), ([*map(clean, some)] for some in names), strict=True))
    return _document(
        evaluation.title,
        element("header", *_heading(evaluation)),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("main", *found),
        json_script("names", known),
        *blocks,
    )


def _document(title: str, *body: Markup) -> str:
    beside = Path(__file__)
    shares = "".join(f".r{rate}{{--share:{abs(2 * rate - 100)}%}}" for rate in range(101))
    style = beside.with_suffix(".css").read_text("utf-8") + shares
    script = beside.with_suffix(".js").read_text("utf-8")
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", http_equiv="x-dns-prefetch-control", content="off"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title}: comparison"),
        element("style", Markup(style)),
    ]
    parts = element("head", *head), element("body", *body, element("script", Markup(script)))
    return f"<!doctype html>\n{element('html', *parts, lang='en')}\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _heading(evaluation: Evaluation) -> Iterable[Markup]:
    yield element("h1", evaluation.title)
    if evaluation.offline:
        said = "The verdicts on this page come from counting words, names and references, to try things out. "
        said += "They do not say which answers are better."
        loud = element("strong", "No language model judged."), element("p", said)
        yield element("div", *loud, class_="offline", role="note")
    if evaluation.description:
        yield element("p", evaluation.description, class_="given")
    judgements = evaluation.judgements
    missing = judgements["winner"].null_count
    facts = {
        "Conditions": ", ".join(evaluation.condition_names) or NONE,
        "Questions": count(len(evaluation.questions)),
        "Replicates": count(len(_distinct(judgements["replicate"]))),
        "Judgements": count(len(judgements))
        + (f", {missing:,} of them without a verdict" if missing else ""),
        "Judge": "no language model" if evaluation.offline else evaluation.judge,
    }
    yield element("dl", *(element("div", *_term(*fact)) for fact in facts.items()), class_="facts")
    if evaluation.warnings:
        listed = element("ul", *(element("li", warning) for warning in evaluation.warnings))
        yield element("div", element("h2", "Warnings"), listed, class_="warnings", role="note")


def _win_rates(evaluation: Evaluation) -> Iterable[Markup]:
    yield element(
        "p",
        "How often the answers of the row’s condition won against those of the column’s, in percent: a win "
        "counts 100, a tie 50 and a loss 0, averaged over the replicates of a question, then over the "
        "questions.",
    )
    scale = (element("span", f"{rate}", class_=_colour(rate)) for rate in range(0, 101, 25))
    yield element(
        "div",
        element("span", "column wins ", *scale, " row wins", class_="scale"),
        element(
            "span",
            _marked("62"),
            ": the row’s condition is significantly better (Wilcoxon’s signed-rank test, p < .05 after "
            "Holm’s correction over the pairs of a criterion).",
        ),
        element(
            "span", "A click on a cell shows the answers of its pair.", class_="needs-script", hidden=True
        ),
        class_="legend",
    )
    matrices = (
        element(
            "article",
            element("h3", criterion),
            element("p", evaluation.criteria.get(criterion), class_="given"),
            _matrix(evaluation, criterion),
            _pairs(evaluation, criterion),
        )
        for criterion in evaluation.criterion_names
    )
    wide = len(evaluation.condition_names) >= WIDE_FROM
    yield element("div", *matrices, class_="matrices wide" if wide else "matrices")


def _matrix(evaluation: Evaluation, criterion: str) -> Markup:
    names = evaluation.condition_names
    rows = (
        [
            name,
            *(_rate(evaluation.rates.get((criterion, name, other)), (n, m)) for m, other in enumerate(names)),
        ]
        for n, name in enumerate(names)
    )
    upright = any(len(name) > SHORT_NAME for name in names)
    caption = f"{criterion}: win rates of rows over columns"
    return _table(caption, [None, *names], rows, class_="matrix upright" if upright else "matrix")


def _rate(row: FigureRow | None, pair: tuple[int, int]) -> Markup:
    """A cell of a matrix. row: None where there are no figures; pair: numbers of the two conditions."""
    where = None if pair[0] == pair[1] else f"{pair[0]} {pair[1]}"
    if row is None or row["win_rate"] is None:
        return element("td", NONE, class_="empty", title=where and "no verdict", data_pair=where)
    rate = f"{row['win_rate']:.0f}"
    shown = _marked(rate) if _is_better(row) else rate
    figures = "; ".join(f"{name} {figure}" for name, figure in _figures(row).items())
    title = f"{row['first']} over {row['second']}: {figures}"
    return element("td", shown, class_=_colour(row["win_rate"]), title=title, data_pair=where)


def _marked(rate: str) -> Markup:
    """How a rate is shown that is significantly better."""
    unseen = element("span", " significantly better", class_="unseen")
    return element("b", rate, element("span", "*", aria_hidden="true"), unseen)


def _is_better(row: FigureRow) -> bool:
    """Whether the first condition is significantly better. The mean and the test's ranks must both say so."""
    p, z = row["p_holm"], row["z"]
    return p is not None and p < SIGNIFICANT and row["win_rate"] > 50 and (z is None or z > 0)


def _colour(rate: float) -> str:
    """Classes; the style sheet has one for each whole percentage."""
    return f"rate {'over' if rate >= 50 else 'under'} r{min(100, max(0, round(rate)))}"


def _figures(row: FigureRow) -> dict[str, str]:
    """All that WIN_RATES says of a pair."""
    return {
        "Win rate": decimal(row["win_rate"]),
        "95% interval": NONE if row["low"] is None else f"{decimal(row['low'])} to {decimal(row['high'])}",
        "Questions": count(row["questions"]),
        "Ties": percent(row["ties"]),
        "Failed": count(row["failed"]),
        "z": decimal(row["z"], 2),
        "p": probability(row["p"]),
        "p after Holm": probability(row["p_holm"]),
        "Shapiro–Wilk p": probability(row["normal_p"]),
    }


def _pairs(evaluation: Evaluation, criterion: str) -> Markup:
    found = [row for row in _rows(evaluation.win_rates) if row["criterion"] == criterion]
    rows = ([f"{row['first']} over {row['second']}", *_figures(row).values()] for row in found)
    heads = ["Pair", *(_figures(found[0]) if found else ())]
    summary = element("summary", f"All figures of {plural(len(found), 'pair')}")
    return element("details", summary, _table(f"{criterion}: figures of each pair", heads, rows))


def _reliability(evaluation: Evaluation) -> Iterable[Markup]:
    rows = (
        [
            row["criterion"],
            count(row["verdicts"]),
            count(row["failed"]),
            *(percent(row[column]) for column in ("first_shown", "position_bias", "agreement")),
        ]
        for row in _rows(evaluation.reliability)
    )
    heads = ["Criterion", "Verdicts", "Failed", "First shown", "Changed by swapping", "Replicates agree"]
    yield _table("Reliability of the judge, by criterion", heads, rows)
    meanings = {
        "Failed": "Judgements that brought no verdict. No rate on this page counts them.",
        "First shown": "Of the verdicts that are no ties, the share that prefers the answer which the judge "
        "saw first. Where the order makes no difference, it is near 50%.",
        "Changed by swapping": "How often the verdict on two answers is another one when they are shown in "
        "the other order. The lower, the better; replicates in the same order may differ, too.",
        "Replicates agree": "How often two judgements of the same answers in the same order give the same "
        "verdict. The higher, the better; where it is low, the answers are hard to tell apart by this "
        "criterion.",
    }
    yield element("dl", *(part for meaning in meanings.items() for part in _term(*meaning)))


def _claims(evaluation: Evaluation) -> Iterable[Markup]:
    if evaluation.claims is None:
        return
    yield element(
        "p",
        "Means per answer. Claims are the different facts that an answer states: the more, the more "
        "comprehensive it is. Clusters hold claims in similar words, and the more there are, the more "
        "diverse the answer is. At a higher threshold, claims are merged that resemble each other less.",
    )
    found = _rows(evaluation.claims)
    most = {measure: max((row[measure] or 0.0 for row in found), default=0.0) for measure in MEASURES}
    rows: Iterable[Sequence[str]] = (
        [
            row["condition"],
            count(row["answers"]),
            *(_bar(row[measure], most[measure]) for measure in MEASURES),
        ]
        for row in found
    )
    yield _table("Claims and clusters of each condition", ["Condition", "Answers", *MEASURES.values()], rows)
    if evaluation.agreement is None:
        return
    yield element("h3", "Agreement with the judge")
    yield element(
        "p",
        "How often the answer with more claims or clusters is the one that most verdicts prefer, of the "
        "pairs of answers where neither is a tie. Chance would be 50%.",
    )
    rows = (
        [
            MEASURES.get(row["measure"], row["measure"]),
            element("td", row["criterion"], class_="text"),
            percent(row["agreement"]),
            count(row["cases"]),
        ]
        for row in _rows(evaluation.agreement)
    )
    heads = [
        "Measure",
        element("th", "Criterion", scope="col", class_="text"),
        "Agreement",
        "Pairs of answers",
    ]
    yield _table("Agreement of claims and clusters with the judge", heads, rows)


def _bar(value: float | None, most: float) -> Markup:
    """A cell with a figure and a bar below it; most: the value of a full bar."""
    if value is None:
        return element("td", NONE)
    filled = element("rect", width=f"{max(0.0, 100 * value / most if most > 0 else 0.0):.1f}", height=1)
    box = {"viewBox": "0 0 100 1", "preserveAspectRatio": "none"}
    return element("td", decimal(value), element("svg", filled, **box, class_="bar", aria_hidden="true"))


def _cost_against_quality(evaluation: Evaluation) -> Iterable[Markup]:
    """In dollars where the costs of all that used tokens are known and some are not zero; else in tokens."""
    tokens, usd = evaluation.per_question("tokens"), evaluation.per_question("cost_usd")
    in_dollars = any(usd.values()) and tokens.keys() <= usd.keys()
    costs, unit = (usd, "Cost") if in_dollars else (tokens, "Tokens")
    criteria = evaluation.criterion_names
    yield element(
        "p",
        f"{unit} per question that was answered, and a condition’s mean win rate over all others. The best "
        "place is the upper left.",
        None if in_dollars else " Tokens stand for the cost, which is not known of all conditions, or zero.",
    )
    options = (element("option", criterion, value=n) for n, criterion in enumerate(criteria))
    label = element("label", "Criterion", for_="plot-criterion")
    chosen = element("select", *options, id="plot-criterion", autocomplete="off")
    yield element("p", label, " ", chosen, class_="needs-script", hidden=True)
    for n, criterion in enumerate(criteria):
        rates = {name: evaluation.mean_rate(criterion, name) for name in costs}
        points = [(clean(name), costs[name], rate) for name, rate in rates.items() if rate is not None]
        yield element(
            "figure",
            element("figcaption", criterion),
            scatter_plot(
                points,
                title=f"{criterion}: {unit.lower()} and mean win rate; the table below has the figures",
                x_title=f"{unit} per question",
                y_title="Mean win rate",
                x_text=lambda x: f"${short_count(x)}" if in_dollars else short_count(x),
            )
            if points
            else element("p", "There is no condition with a cost and a win rate.", class_="empty"),
            data_criterion=n,
        )
    rows = (
        [
            name,
            (dollars if in_dollars else short_count)(costs[name]) if name in costs else NONE,
            *(decimal(evaluation.mean_rate(criterion, name)) for criterion in criteria),
        ]
        for name in evaluation.condition_names
    )
    yield _table("Costs and mean win rates", ["Condition", f"{unit} per question", *criteria], rows)


def _conditions(evaluation: Evaluation) -> Iterable[Markup]:
    rows = (
        [
            row["name"],
            element("td", row["method"], class_="text"),
            NONE if row["level"] in (None, "") else str(row["level"]),
            *(count(row[column]) for column in ("questions", "failed", "calls", "tokens")),
            dollars(row["cost_usd"]),
            *(decimal(row[column]) for column in ("model_seconds", "words")),
            element("td", row["settings"] or NONE, class_="text given"),
        ]
        for row in _rows(evaluation.conditions)
    )
    left = {name: element("th", name, scope="col", class_="text") for name in ("Method", "Settings")}
    counts = ["Level", "Questions", "Failed", "Calls", "Tokens", "Cost"]
    means = ["Model seconds per question", "Words per answer"]
    heads = ["Condition", left["Method"], *counts, *means, left["Settings"]]
    yield _table("Conditions and what they cost", heads, rows)


def _questions(evaluation: Evaluation, complete: int) -> Iterable[Markup]:
    """What the script fills. complete: questions whose answers and reasons the page has."""
    questions, names = evaluation.questions, evaluation.condition_names
    if not questions or len(names) < 2:
        yield element("p", "There are no two answers to compare.", class_="empty")
        return
    yield element(
        "noscript", element("p", "The answers are shown by a script, and scripts are switched off.")
    )
    if complete < len(questions):
        said = f"All answers would make this page too large: it has those to {complete:,} of the "
        said += f"{len(questions):,} questions, with the judge’s reasons, and of the others the verdicts."
        yield element("p", said, class_="warnings")
    listed = (
        element(
            "label",
            element("input", type="radio", name="question", value=n, checked=n == 0, autocomplete="off"),
            element("span", question),
        )
        for n, question in enumerate(questions.values())
    )
    pair = (
        element(
            "div",
            element("label", label, for_=side),
            " ",
            element(
                "select",
                *(element("option", name, value=n, selected=n == chosen) for n, name in enumerate(names)),
                id=side,
                autocomplete="off",
            ),
        )
        for chosen, (side, label) in enumerate({"left": "Condition", "right": "Compared with"}.items())
    )
    answers = (
        element(
            "article", element("h3", id=f"{side}-name"), element("div", id=f"{side}-answer", class_="answer")
        )
        for side in ("left", "right")
    )
    yield element(
        "div",
        element("label", "Search the questions", for_="search"),
        element("input", type="search", id="search", autocomplete="off"),
        element("p", plural(len(questions), "question"), id="found", role="status"),
        element("fieldset", element("legend", "Question"), *listed),
        element("div", *pair, class_="pair"),
        element("p", id="question-text"),
        element("div", *answers, class_="sides"),
        element("h3", "Verdicts"),
        element("div", id="verdicts", class_="sides"),
        id="reader",
        class_="needs-script",
        hidden=True,
    )


def _term(term: str, meaning: str) -> list[Markup]:
    return [element("dt", term), element("dd", meaning)]


def _table(
    caption: str,
    heads: Sequence[str | None],
    rows: Iterable[Sequence[str]],
    class_: str | None = None,
) -> Markup:
    """heads: of the columns; None for none. rows: each begins with its head. Markup is a whole cell."""

    def cell(name: str, text: str | None, **attributes: str) -> Markup:
        if isinstance(text, Markup):
            return text
        return element(name, element("bdi", text) if name == "th" else text, **attributes)

    body = [
        element("tr", cell("th", head, scope="row"), *(cell("td", text) for text in texts))
        for head, *texts in rows
    ]
    if not body:
        return element("p", "There are no figures.", class_="empty")
    top = (cell("th", head, scope="col") if head is not None else element("td") for head in heads)
    inside = [element("caption", caption, class_="unseen"), element("thead", element("tr", *top))]
    table = element("table", *inside, element("tbody", *body), class_=class_)
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _rows(table: pa.Table) -> list[FigureRow]:
    """With None for what is not finite."""
    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        for row in table.to_pylist()
    ]


def _distinct(*columns: pa.ChunkedArray) -> list[Any]:
    values = (value for column in columns for value in column.unique().to_pylist())
    return list(dict.fromkeys(value for value in values if value is not None))


def _mirrored(row: FigureRow) -> FigureRow:
    """A row of WIN_RATES, seen from its second condition."""
    rates = {"win_rate": row["win_rate"], "low": row["high"], "high": row["low"]}
    turned = {name: None if rate is None else 100 - rate for name, rate in rates.items()}
    z = None if row["z"] is None else -row["z"]
    return row | turned | {"first": row["second"], "second": row["first"], "z": z}
