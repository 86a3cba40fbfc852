"""What a comparison of conditions found, as one HTML page that needs no network: the template
`report_page.html.j2`, and the figures and texts that it shows.

The page's policy allows its own style and script, by their hashes, and nothing else. The template escapes all
text except the JSON blocks, which are made here. The same evaluation makes the same page.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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


def write_page(index: Index, found: Comparison, url: str) -> None:
    """Write the page of a comparison where it is wanted. Raises StoreError."""
    page = report_page(replace(found, description=found.description or index.settings.corpus.about or ""))
    store, file = Store.of_file(url, index.settings.storage.of(url))
    store.write(file, page.encode("utf-8"))


def report_page(found: Comparison) -> str:
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
    tables = found.tables
    verdicts = (tables["win_rates"], tables["judgements"])
    # In the order of their table; those that only other tables have come last.
    pairs = (table[end] for table in verdicts for end in ("first", "second"))
    conditions = _distinct(tables["conditions"]["name"], tables["answers"]["condition"], *pairs)
    judged = _distinct(*(table["criterion"] for table in (*verdicts, tables["reliability"])))
    names = {"conditions": conditions, "criteria": list(dict.fromkeys([*found.criteria, *judged]))}
    asked = dict(zip(*(tables["answers"][n].to_pylist() for n in ("question_id", "question")), strict=True))
    ids = dict.fromkeys([*asked, *_distinct(tables["judgements"]["question_id"])])
    questions = {id_: asked.get(id_) or id_ for id_ in ids}
    blocks, complete = _question_blocks(found, names, questions)

    def hash_of(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return environment.get_template(beside.with_suffix(".html.j2").name).render(
        evaluation=found,
        tables=tables,
        names_of=conditions,
        criteria=names["criteria"],
        questions=questions,
        style=Markup(style),
        script=Markup(script),
        policy=f"style-src {hash_of(style)}; script-src {hash_of(script)}",
        names=_json({kind: [clean(name) for name in some] for kind, some in names.items()}),
        blocks=blocks,
        complete=complete,
        replicates=len(_distinct(tables["judgements"]["replicate"])),
        significant=SIGNIFICANT,
        figures=_figures,
        rows_of=_rows,
        dash=NONE,
        plot_size=(WIDTH, HEIGHT),
        plot_box=BOX,
        **_rates_and_costs(found, names),
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


def _rates_and_costs(found: Comparison, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """rates: (criterion, row, column) -> a row of WIN_RATES with a rate, whose first condition is the row's;
    mean_rates: (criterion, condition) -> the mean over all others; costs per question, and a plot for each
    criterion: in dollars where the costs of all that used tokens are known and some are not zero; else in
    tokens."""
    rates = {}
    for row in _rows(found.tables["win_rates"]):
        if row["win_rate"] is not None:
            criterion, first, second = row["criterion"], row["first"], row["second"]
            turned = {"win_rate": row["win_rate"], "low": row["high"], "high": row["low"]}
            mirrored = {name: None if rate is None else 100 - rate for name, rate in turned.items()}
            z = None if row["z"] is None else -row["z"]
            rates[criterion, first, second] = row
            rates[criterion, second, first] = row | mirrored | {"z": z, "first": second, "second": first}
    of: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (criterion, name, _), row in rates.items():
        of[criterion, name].append(row["win_rate"])
    mean_rates = {key: fmean(some) for key, some in of.items()}

    columns = (found.tables["answers"][name].to_pylist() for name in ("condition", "text"))
    answered = Counter(name for name, text in zip(*columns, strict=True) if text and text.strip())
    totals = _rows(found.tables["conditions"])
    tokens, usd = (
        {
            row["name"]: row[column] / answered[row["name"]]
            for row in totals
            if row[column] is not None and row["name"] in answered
        }
        for column in ("tokens", "cost_usd")
    )
    in_dollars = any(usd.values()) and tokens.keys() <= usd.keys()
    costs = usd if in_dollars else tokens
    amount: Callable[[float], str] = (lambda x: f"${short_count(x)}") if in_dollars else short_count
    plots = {}
    for criterion in names["criteria"]:
        own = [
            (n, cost, mean_rates[criterion, n]) for n, cost in costs.items() if (criterion, n) in mean_rates
        ]
        plots[criterion] = scatter_plot(own, amount) if own else None
    return {
        "rates": rates, "mean_rates": mean_rates, "costs": costs, "in_dollars": in_dollars, "plots": plots
    }  # fmt: skip


def _question_blocks(
    found: Comparison, names: Mapping[str, Sequence[str]], questions: Mapping[str, str]
) -> tuple[list[Markup], int]:
    """The JSON of each question, which the page's script reads when the question is chosen; and how many of
    them have answers and reasons. Conditions and criteria are named by their numbers.

    answers   HTML of each condition's answer; null where there is none
    errors    why an answer is missing, by the number of the condition
    said      what the judge said, each text once
    judged    for each pair (a before b) and criterion: a, b, criterion, letters of the verdicts in the order
              of replicates, numbers in `said`. A letter is `a` or `b` for the one that won, `t` for a tie,
              `x` for no verdict; a capital where b was shown first
    """
    conditions, criteria = ({name: n for n, name in enumerate(some)} for some in names.values())
    answers = found.tables["answers"].select(["question_id", "condition", "text", "error"]).to_pylist()
    given = {(row["question_id"], row["condition"]): row for row in answers}
    judged: dict[str, dict[tuple[int, int, int], list[tuple[str, str]]]]
    judged = defaultdict(lambda: defaultdict(list))
    for row in found.tables["judgements"].sort_by([("replicate", "ascending")]).to_pylist():
        a, b = sorted((row["first"], row["second"]), key=conditions.__getitem__)
        letter = {a: "a", b: "b", "": "t"}.get(row["winner"], "x")
        if b == row["second" if row["swapped"] else "first"]:
            letter = letter.upper()
        place = conditions[a], conditions[b], criteria[row["criterion"]]
        judged[row["question_id"]][place].append((letter, row["reason"] or row["error"] or ""))

    blocks, left, complete = [], MAX_BYTES, 0
    for id_ in questions:
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

    dots: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for label, amount, rate in points:
        x, y = place(amount), bottom - rate / 100 * (bottom - top)
        dots.append({"x": x, "y": y, "title": f"{label}: {x_text(amount)}, {rate:.1f}"})
        text = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
        # Beside the dot, on the side with more room, and nearer to the middle where there is a label already.
        at, anchor = (x + 9, "start") if x < (left + right) / 2 else (x - 9, "end")
        near = [o["y"] for o in labels if abs(o["x"] - at) < 6.4 * (len(o["text"]) + len(text))]
        base, step = y + 4, 14 if y < (top + bottom) / 2 else -14
        while any(abs(base - other) < 14 for other in near):
            base += step
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
