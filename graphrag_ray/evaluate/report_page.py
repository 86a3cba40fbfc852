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
from collections.abc import Callable, Mapping, Sequence
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

MAX_BYTES = 14_000_000
"""Of answers and reasons in the page. The questions beyond have their verdicts alone."""
LONGEST_MARKDOWN = 100_000
"""Characters. A longer text is shown as it is: it is no prose, and might take seconds."""
WIDTH, HEIGHT = 480, 340
BOX = (46, 14, WIDTH - 14, HEIGHT - 46)
"""Left, top, right and bottom of a plot in its picture."""
LOG_FROM = 20.0
"""The x axis is logarithmic where the largest value is at least so many times the smallest."""
MAX_TICKS = 6
TINY = 1e-12
LONGEST_LABEL = 24
"""Characters, of about 6.4 by 14."""
NONE = "–"
"""What stands where there is no figure."""

# HTML has no control characters, and UTF-8 has no lone surrogates.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_WEB_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)

FigureRow: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Conditions that answered the same questions, and what a judge said of their answers.

    description  of the corpus; may be ""
    offline      no language model judged; the page says so at its top
    criteria     name -> the text that the judge was given
    conditions   of comparison.CONDITIONS
    win_rates    of head_to_head.WIN_RATES; so are reliability and judgements
    answers      condition, question_id, question, text (Markdown; null or blank: failed), error
    claims       of comparison.CLAIM_COUNTS; None where claims were not asked for. So is agreement
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
        """(criterion, row, column) -> a row of WIN_RATES with a rate, whose first condition is the row's."""
        found = {}
        for row in _rows(self.win_rates):
            if row["win_rate"] is None:
                continue
            criterion, first, second = row["criterion"], row["first"], row["second"]
            turned = {"win_rate": row["win_rate"], "low": row["high"], "high": row["low"]}
            mirrored = {name: None if rate is None else 100 - rate for name, rate in turned.items()}
            z = None if row["z"] is None else -row["z"]
            found[criterion, first, second] = row
            found[criterion, second, first] = row | mirrored | {"z": z, "first": second, "second": first}
        return found

    def mean_rate(self, criterion: str, condition: str) -> float | None:
        """Mean win rate over all other conditions."""
        keys = ((criterion, condition, other) for other in self.condition_names)
        known = [self.rates[key]["win_rate"] for key in keys if key in self.rates]
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
    name = posixpath.basename(index.store.url.rstrip("/")) or index.store.url
    names = ("conditions", "win_rates", "reliability", "judgements", "answers", "agreement")
    tables: dict[str, Any] = {name: found.tables.get(name) for name in names}
    page = report_page(
        Evaluation(
            title=f"{name}, snapshot {index.manifest.number}",
            description=found.description or index.settings.corpus.about or "",
            judge=found.judge,
            offline=found.offline,
            warnings=found.warnings,
            criteria=found.criteria,
            claims=found.tables.get("claim_counts"),
            **tables,
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
    filters = (count, decimal, dollars, percent, plural, short_count)
    environment.filters |= {one.__name__: one for one in filters}
    shares = "".join(f".r{rate}{{--share:{abs(2 * rate - 100)}%}}" for rate in range(101))
    style = beside.with_suffix(".css").read_text("utf-8") + shares
    script = beside.with_suffix(".js").read_text("utf-8")
    names = {"conditions": evaluation.condition_names, "criteria": evaluation.criterion_names}
    blocks, complete = _question_blocks(evaluation)

    def hash_of(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return environment.get_template(beside.with_suffix(".html.j2").name).render(
        evaluation=evaluation,
        style=Markup(style),
        script=Markup(script),
        policy=f"style-src {hash_of(style)}; script-src {hash_of(script)}",
        names=_json({kind: [clean(name) for name in some] for kind, some in names.items()}),
        blocks=blocks,
        complete=complete,
        replicates=len(_distinct(evaluation.judgements["replicate"])),
        significant=SIGNIFICANT,
        figures=_figures,
        rows_of=_rows,
        dash=NONE,
        plot_size=(WIDTH, HEIGHT),
        plot_box=BOX,
        **_costs(evaluation),
    )


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
    answers = evaluation.answers.select(["question_id", "condition", "text", "error"]).to_pylist()
    given = {(row["question_id"], row["condition"]): row for row in answers}
    judged: dict[str, dict[tuple[int, int, int], list[tuple[str, str]]]]
    judged = defaultdict(lambda: defaultdict(list))
    for row in evaluation.judgements.sort_by([("replicate", "ascending")]).to_pylist():
        a, b = sorted((row["first"], row["second"]), key=conditions.__getitem__)
        letter = {a: "a", b: "b", "": "t"}.get(row["winner"], "x")
        if b == row["second" if row["swapped"] else "first"]:
            letter = letter.upper()
        place = conditions[a], conditions[b], criteria[row["criterion"]]
        judged[row["question_id"]][place].append((letter, row["reason"] or row["error"] or ""))

    blocks, left, complete = [], MAX_BYTES, 0
    for id_ in evaluation.questions:
        letters = [[*place, "".join(letter for letter, _ in said)] for place, said in judged[id_].items()]
        if left > 0:
            rows = [given.get((id_, name), {}) for name in conditions]
            texts = [row.get("text") for row in rows]
            number: dict[str, int] = {}
            numbers = [
                [number.setdefault(text, len(number)) for _, text in said] for said in judged[id_].values()
            ]
            block = _json(
                {
                    "answers": [rendered_markdown(t) if t and t.strip() else None for t in texts],
                    "errors": {n: clean(row["error"]) for n, row in enumerate(rows) if row.get("error")},
                    "said": [clean(text) for text in number],
                    "judged": [[*row, said] for row, said in zip(letters, numbers, strict=True)],
                }
            )
            left -= len(block.encode())
        if left > 0:
            complete += 1
        else:
            block = _json({"judged": letters})
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


def scatter_plot(
    points: Sequence[tuple[str, float, float]], x_text: Callable[[float], str]
) -> dict[str, Any]:
    """Where everything lies in a picture of WIDTH and HEIGHT: x_ticks (place, text), y_ticks (place, value),
    dots (x, y, title) and labels (text, x, y, anchor).

    points: (label, x from 0, y from 0 to 100); x_text: how a value of x is written."""
    low, high, ticks, log = amount_axis([x for _, x, _ in points])
    left, top, right, bottom = BOX

    def place(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if log else value / high
        return left + share * (right - left)

    dots, labels = [], []
    for label, amount, rate in points:
        x, y = place(amount), bottom - rate / 100 * (bottom - top)
        dots.append({"x": x, "y": y, "title": f"{label}: {x_text(amount)}, {rate:.1f}"})
        text = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
        # Beside the dot, on the side with more room, and lower where there is a label already.
        at, anchor = (x + 9, "start") if x < (left + right) / 2 else (x - 9, "end")
        near = [o["y"] for o in labels if abs(o["x"] - at) < 6.4 * (len(o["text"]) + len(text))]
        base = y + 4
        while any(abs(base - other) < 14 for other in near):
            base += 14
        labels.append({"text": text, "x": at, "y": base, "anchor": anchor})
    return {
        "x_ticks": [(place(value), x_text(value)) for value in ticks],
        "y_ticks": [(bottom - value / 100 * (bottom - top), value) for value in range(0, 101, 25)],
        "dots": dots,
        "labels": labels,
    }


def amount_axis(values: Sequence[float]) -> tuple[float, float, list[float], bool]:
    """Ends and ticks of the x axis, and whether it is logarithmic; else it begins at 0."""
    least, most = min(values), max(values)
    if least > TINY and least * LOG_FROM <= most:
        low, high = least / 1.5, most * 1.5
        powers = [10.0**k for k in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)]
        fine = [m * power for power in powers for m in (1, 2, 5) if low <= m * power <= high]
        coarse = [power for power in powers if power >= low]
        return low, high, fine if len(fine) <= MAX_TICKS else coarse[:: -(-len(coarse) // MAX_TICKS)], True
    high = most * 1.12 if most > TINY else 1.0
    power = 10.0 ** math.floor(math.log10(high / MAX_TICKS))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= high / MAX_TICKS)
    return 0.0, high, [step * n for n in range(math.floor(high / step) + 1)], False
