"""What a comparison of conditions found, as one HTML page that needs no network: the template
`report_page.html.j2`, and the figures and texts that it shows.

The page's policy allows its own style and script, by their hashes, and nothing else. The template escapes all
text except the JSON blocks, which are made here. The same evaluation makes the same page.
"""

from __future__ import annotations

import base64
import hashlib
import math
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markupsafe import Markup, escape

from graphrag_ray.base.wording import plural
from graphrag_ray.evaluate.comparison import Comparison
from graphrag_ray.evaluate.judging.head_to_head import SIGNIFICANT
from graphrag_ray.query.ask import Index
from graphrag_ray.store.files import Store

WIDE_FROM = 9
"""From so many conditions on, a matrix has the whole width."""
SHORT_NAME = 6
"""Characters; where names are longer, those of a matrix's columns are upright."""
MEASURES: Mapping[str, str] = {
    "claims": "Claims",
    **{f"clusters_0_{n}": f"Clusters at .{n}" for n in (5, 6, 7, 8)},
}
MAX_BYTES = 14_000_000
"""Of answers and reasons in the page. The questions beyond have their verdicts alone."""
LONGEST_MARKDOWN = 100_000
"""Characters. A longer text is shown as it is: it is no prose, and might take seconds."""
WIDTH, HEIGHT = 480, 340
LOG_FROM = 20.0
"""The x axis is logarithmic where the largest value is at least so many times the smallest."""
MAX_TICKS = 6
LONGEST_LABEL = 24
"""Characters."""

_CHARACTER, _LINE = 6.4, 14.0
"""Size of the labels' characters, about."""
_DOT = 5.0
NONE = "–"
"""What stands where there is no figure."""

# HTML has no control characters, and UTF-8 has no lone surrogates.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_WEB_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)

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
    win_rates    of head_to_head.WIN_RATES; so are reliability and judgements
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
            turned = {"win_rate": row["win_rate"], "low": row["high"], "high": row["low"]}
            mirrored = {name: None if rate is None else 100 - rate for name, rate in turned.items()}
            mirrored["z"] = None if row["z"] is None else -row["z"]
            ends = {"first": row["second"], "second": row["first"]}
            found[row["criterion"], row["second"], row["first"]] = row | mirrored | ends
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


def write_page(index: Index, found: Comparison, url: str) -> None:
    """Write the page of a comparison where it is wanted. Raises StoreError."""
    tables = found.tables
    name = posixpath.basename(index.store.url.rstrip("/")) or index.store.url
    page = report_page(
        Evaluation(
            title=f"{name}, snapshot {index.manifest.number}",
            description=found.description or index.settings.corpus.about or "",
            judge=found.judge,
            offline=found.offline,
            warnings=found.warnings,
            conditions=tables["conditions"],
            criteria=found.criteria,
            win_rates=tables["win_rates"],
            reliability=tables["reliability"],
            judgements=tables["judgements"],
            answers=tables["answers"].select(["condition", "question_id", "question", "text", "error"]),
            claims=tables.get("claim_counts"),
            agreement=tables.get("agreement"),
        )
    )
    store, file = Store.of_file(url, index.settings.storage.of(url))
    store.write(file, page.encode("utf-8"))


def report_page(evaluation: Evaluation) -> str:
    """The page. It can be written as UTF-8, whatever the texts in it."""
    beside = Path(__file__)
    environment = Environment(
        loader=FileSystemLoader(beside.parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if type(value) is str else "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": count,
        "decimal": decimal,
        "dollars": dollars,
        "percent": percent,
        "plural": plural,
        "short_count": short_count,
        "colour": _colour,
    }
    shares = "".join(f".r{rate}{{--share:{abs(2 * rate - 100)}%}}" for rate in range(101))
    style = beside.with_suffix(".css").read_text("utf-8") + shares
    script = beside.with_suffix(".js").read_text("utf-8")
    names = {"conditions": evaluation.condition_names, "criteria": evaluation.criterion_names}
    blocks, complete = _question_blocks(evaluation)
    return environment.get_template(beside.with_suffix(".html.j2").name).render(
        evaluation=evaluation,
        style=Markup(style),
        script=Markup(script),
        policy=f"style-src {_hash(style)}; script-src {_hash(script)}",
        names=_json({kind: [clean(name) for name in some] for kind, some in names.items()}),
        blocks=blocks,
        complete=complete,
        replicates=len(_distinct(evaluation.judgements["replicate"])),
        wide=len(evaluation.condition_names) >= WIDE_FROM,
        upright=any(len(name) > SHORT_NAME for name in evaluation.condition_names),
        cell=lambda *key: _cell(evaluation.rates.get(key)),
        figures=_figures,
        win_rates=_rows(evaluation.win_rates),
        reliability=_rows(evaluation.reliability),
        conditions=_rows(evaluation.conditions),
        claims=None if evaluation.claims is None else _rows(evaluation.claims),
        agreement=None if evaluation.agreement is None else _rows(evaluation.agreement),
        measures=MEASURES,
        dash=NONE,
        plot_size=(WIDTH, HEIGHT),
        **_costs(evaluation),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _cell(row: FigureRow | None) -> dict[str, Any] | None:
    """What a cell of a matrix shows of a row of WIN_RATES; None where there is no verdict. The first
    condition is marked as better where both the mean and the test's ranks say so."""
    if row is None or row["win_rate"] is None:
        return None
    p, z = row["p_holm"], row["z"]
    said = "; ".join(f"{name} {figure}" for name, figure in _figures(row).items())
    return {
        "rate": row["win_rate"],
        "better": p is not None and p < SIGNIFICANT and row["win_rate"] > 50 and (z is None or z > 0),
        "title": f"{row['first']} over {row['second']}: {said}",
    }


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


def _costs(evaluation: Evaluation) -> dict[str, Any]:
    """Costs per question and a plot for each criterion: in dollars where the costs of all that used tokens
    are known and some are not zero; else in tokens."""
    tokens, usd = evaluation.per_question("tokens"), evaluation.per_question("cost_usd")
    in_dollars = any(usd.values()) and tokens.keys() <= usd.keys()
    costs = usd if in_dollars else tokens
    amount: Callable[[float], str] = (lambda x: f"${short_count(x)}") if in_dollars else short_count
    plots = {}
    for criterion in evaluation.criterion_names:
        rates = {name: evaluation.mean_rate(criterion, name) for name in costs}
        points = [(name, costs[name], rate) for name, rate in rates.items() if rate is not None]
        plots[criterion] = scatter_plot(points, amount) if points else None
    return {"costs": costs, "in_dollars": in_dollars, "plots": plots}


def _question_blocks(evaluation: Evaluation) -> tuple[list[Markup], int]:
    """The JSON of each question, which the page's script reads when the question is chosen; and how many of
    them have answers and reasons. Conditions and criteria are named by their numbers.

    answers   HTML of each condition's answer; null where there is none
    errors    why an answer is missing, by the number of the condition
    said      what the judge said, each text once
    judged    for each pair (a before b) and criterion: a, b, criterion, letters of the verdicts in the order
              of replicates, numbers in `said`. A letter is `a` or `b` for the one that won, `t` for a tie,
              `x` for no verdict; a capital where b was shown first
    """
    conditions = {name: n for n, name in enumerate(evaluation.condition_names)}
    criteria = {name: n for n, name in enumerate(evaluation.criterion_names)}
    given: dict[str, dict[str, tuple[str | None, str | None]]] = defaultdict(dict)
    names: tuple[str, ...] = ("question_id", "condition", "text", "error")
    for id_, name, text, error in zip(*(evaluation.answers[n].to_pylist() for n in names), strict=True):
        given[id_][name] = text, error
    judged: dict[str, dict[tuple[int, int, int], list[tuple[str, str]]]]
    judged = defaultdict(lambda: defaultdict(list))
    table = evaluation.judgements.sort_by([("replicate", "ascending")])
    names = ("question_id", "criterion", "first", "second", "swapped", "winner", "reason", "error")
    columns = (table[n].to_pylist() for n in names)
    for id_, by, first, second, swapped, winner, reason, error in zip(*columns, strict=True):
        a, b = sorted((first, second), key=conditions.__getitem__)
        letter = {a: "a", b: "b", "": "t"}.get(winner, "x")
        if b == (second if swapped else first):
            letter = letter.upper()
        judged[id_][conditions[a], conditions[b], criteria[by]].append((letter, reason or error or ""))

    blocks, left, complete = [], MAX_BYTES, 0
    for id_ in evaluation.questions:
        letters = [[*pair, "".join(letter for letter, _ in found)] for pair, found in judged[id_].items()]
        block = None
        if left > 0:
            answers = [given[id_].get(name, (None, None)) for name in conditions]
            texts = dict.fromkeys(text for found in judged[id_].values() for _, text in found)
            number = {text: n for n, text in enumerate(texts)}
            said = [[number[text] for _, text in found] for found in judged[id_].values()]
            block = _json(
                {
                    "answers": [rendered_markdown(t) if t and t.strip() else None for t, _ in answers],
                    "errors": {n: clean(error) for n, (_, error) in enumerate(answers) if error},
                    "said": [clean(text) for text in texts],
                    "judged": [[*row, numbers] for row, numbers in zip(letters, said, strict=True)],
                }
            )
            left -= len(block.encode())
        if block is None or left < 0:
            block = _json({"judged": letters})
        else:
            complete += 1
        blocks.append(block)
    return blocks, complete


def _json(value: Any) -> Markup:
    """JSON that can stand in a script element. All text in it should be clean."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"))


def _rows(table: pa.Table) -> list[FigureRow]:
    """With None for what is not finite."""
    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        for row in table.to_pylist()
    ]


def _distinct(*columns: pa.ChunkedArray) -> list[Any]:
    values = (value for column in columns for value in column.unique().to_pylist())
    return list(dict.fromkeys(value for value in values if value is not None))


def clean(text: str) -> str:
    """The text with U+FFFD for each character that HTML or UTF-8 cannot hold."""
    return _NO_TEXT.sub("\ufffd", text)


def rendered_markdown(text: str) -> str:
    """HTML of a text that a model wrote. Images become their description, and links other than to a web
    address stay as they were written. Headings are of the levels 4 to 6: the page has those above."""
    text = clean(text)
    if len(text) > LONGEST_MARKDOWN:
        return f"<pre>{escape(text)}</pre>"
    return str(_MARKDOWN.render(text))


def _restrict(state: StateCore) -> None:
    for block in state.tokens:
        for token in (block, *(block.children or ())):
            # Of what is left out, the `style` of table cells would be refused by the page's policy.
            token.attrs = {name: token.attrs[name] for name in ("href", "start") if name in token.attrs}
            if token.type == "image":
                token.type = "text"
            elif token.type == "fence":
                token.info = ""  # would become a class
            elif token.type == "link_open":
                token.attrs |= {"rel": "noopener noreferrer", "target": "_blank"}
            elif token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 3)}"


_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_MARKDOWN.validateLink = lambda url: _WEB_ADDRESS.match(url) is not None  # type: ignore[method-assign]
_MARKDOWN.core.ruler.push("restrict", _restrict)


def decimal(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:,.{digits}f}".replace("-", "−")


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def short_count(value: float) -> str:
    """`950`, `12.5k`, `3M`"""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"


def probability(p: float | None) -> str:
    """`< .001`, `.023`, `1`"""
    if p is None:
        return NONE
    if p < 0.001:
        return "< .001"
    return "1" if p >= 0.9995 else f"{p:.3f}"[1:]


def dollars(usd: float | None) -> str:
    """With at least two digits that are not zero: `$1,204.50`, `$0.0031`."""
    if usd is None:
        return "unknown"
    digits = 1 - math.floor(math.log10(usd)) if 0 < usd < 1 else 2
    return f"${usd:,.{min(digits, 12)}f}" if usd else "$0"


@dataclass(frozen=True)
class PlotAxis:
    """From `low` to `high`, which lie at `start` and `end` in the picture."""

    low: float
    high: float
    ticks: Sequence[float]
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)

    def common(self, other: _Box) -> float:
        """The area that lies in both."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        return _Box(left, top, min(self.right, other.right), min(self.bottom, other.bottom)).area


_PLOT = _Box(46, 14, WIDTH - 14, HEIGHT - 46)


def scatter_plot(
    points: Sequence[tuple[str, float, float]], x_text: Callable[[float], str]
) -> dict[str, Any]:
    """Where everything lies in a picture of WIDTH and HEIGHT: box (left, top, right, bottom of the plot),
    x_ticks (place, text), y_ticks (place, value), dots (x, y, title) and labels (text, x, y, anchor).

    points: (label, x from 0, y from 0 to 100); x_text: how a value of x is written."""
    x_axis, y_axis = amount_axis([x for _, x, _ in points]), rate_axis([y for _, _, y in points])
    places = [(x_axis.place(x), y_axis.place(y)) for _, x, y in points]
    titles = [f"{label}: {x_text(x)}, {y:.1f}" for label, x, y in points]
    texts = [
        label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…" for label, _, _ in points
    ]
    labels = zip(texts, _label_places(texts, places), strict=True)
    return {
        "box": (_PLOT.left, _PLOT.top, _PLOT.right, _PLOT.bottom),
        "x_ticks": [(x_axis.place(value), x_text(value)) for value in x_axis.ticks],
        "y_ticks": [(y_axis.place(value), value) for value in y_axis.ticks],
        "dots": [{"x": x, "y": y, "title": title} for (x, y), title in zip(places, titles, strict=True)],
        "labels": [{"text": text, "x": x, "y": y, "anchor": anchor} for text, (x, y, anchor) in labels],
    }


def amount_axis(values: Sequence[float]) -> PlotAxis:
    """The x axis. It begins at 0, but where it is logarithmic."""
    least, most = min(values), max(values)
    log = 0 < least * LOG_FROM <= most
    low, high = (least / 1.5, most * 1.5) if log else (0.0, most * 1.12 or 1.0)
    ticks = _powers(low, high) if log else _multiples(_step(high / MAX_TICKS), low, high)
    return PlotAxis(low, high, ticks, _PLOT.left, _PLOT.right, log)


def rate_axis(values: Sequence[float]) -> PlotAxis:
    """The y axis: of percentages, with some room around them and around 50."""
    low = max(0.0, 10.0 * math.floor((min(50.0, *values) - 4) / 10))
    high = min(100.0, 10.0 * math.ceil((max(50.0, *values) + 4) / 10))
    return PlotAxis(low, high, _multiples(10.0, low, high), _PLOT.bottom, _PLOT.top)


def _step(least: float) -> float:
    """The first of … 0.1, 0.2, 0.5, 1, 2, 5, 10 … that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((power * m for m in (1, 2, 5) if power * m >= least), power * 10)


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten, with their doubles and halves where there is room; or every second, third, … of them."""
    exponents = range(math.ceil(math.log10(low)) - 1, math.floor(math.log10(high)) + 1)
    fine = [m * 10.0**k for k in exponents for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    coarse = [10.0**k for k in exponents if low <= 10.0**k]
    return fine if len(fine) <= MAX_TICKS else coarse[:: math.ceil(len(coarse) / MAX_TICKS)]


def _label_places(
    labels: Sequence[str], dots: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float, str]]:
    """x, y and anchor of each label: near its dot, where it covers the least of dots and earlier labels."""
    taken = [_Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    for label, (x, y) in zip(labels, dots, strict=True):
        width, away = len(label) * _CHARACTER, _DOT + 4
        left_of = {"start": 0.0, "middle": width / 2, "end": width}
        tried = [(x + away, y + 4, "start"), (x - away, y + 4, "end")]
        for line in range(3):
            for at, anchor in ((x, "middle"), (x + _DOT, "start"), (x - _DOT, "end")):
                tried += [(at, y + sign * (away + line * _LINE) + (sign > 0) * 9, anchor) for sign in (-1, 1)]
        boxes = []
        for at, base, anchor in tried:
            left = at - left_of[anchor]
            boxes.append(_Box(left, base - 11, left + width, base - 11 + _LINE))
        covered = [sum(map(box.common, taken)) + 4 * (box.area - box.common(_PLOT)) for box in boxes]
        best = min(range(len(tried)), key=lambda n: round(covered[n], 3))
        taken.append(boxes[best])
        yield tried[best]
