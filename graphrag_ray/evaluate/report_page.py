"""Render a comparison or scores as a self-contained HTML page, from the template `report_page.html.j2`.

The page's content security policy allows only its own style and script, by hash. The template escapes all
text except the JSON blocks made here. Rendering is deterministic.
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
from typing import Any

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markupsafe import Markup, escape

from graphrag_ray.base.wording import plural
from graphrag_ray.evaluate.comparison import ANSWERED, CONDITIONS, Comparison, index_title
from graphrag_ray.evaluate.evaluation_run import Results
from graphrag_ray.evaluate.judging.head_to_head import JUDGEMENTS, RELIABILITY, SIGNIFICANT, WIN_RATES
from graphrag_ray.evaluate.judging.judge_dialogue import STAGE
from graphrag_ray.evaluate.known_answers import figures_by_type
from graphrag_ray.query.ask import Index
from graphrag_ray.store.files import Store

MAX_BYTES = 14_000_000
"""Maximum size of all answers and reasons. Questions beyond it include only their verdicts."""
MAX_MARKDOWN = 100_000
"""Maximum length of rendered text in characters.

Longer text is not prose and could take seconds to render.
"""
WIDTH, HEIGHT = 480, 340
BOX = (46, 14, WIDTH - 14, HEIGHT - 46)  # Left, top, right and bottom of a plot inside its picture.
LOG_RATIO = 20.0  # The x axis is logarithmic from this ratio of the largest to the smallest value.
MAX_TICKS = 6
TINY = 1e-12
MAX_LABEL = 24  # Maximum label length; characters are about 6.4 × 14 units.
MISSING = "–"

# HTML cannot contain control characters, and UTF-8 cannot contain lone surrogates.
_INVALID = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_WEB_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)


def write_page(index: Index, comparison: Comparison, url: str) -> None:
    """Write the page of a comparison to a file or URL. Raises StoreError."""
    about = comparison.description or index.settings.corpus.description or ""
    store, file = Store.for_file(url, index.settings.storage.fsspec_options(url))
    store.write(file, report_page(replace(comparison, description=about)).encode("utf-8"))


def write_scores_page(index: Index, results: Results, url: str) -> None:
    """Write the page of `evaluate qa` to a file or URL. Raises StoreError.

    It has the sections of a comparison that do not depend on verdicts, and the scores.
    """
    empty = {
        "judgements": JUDGEMENTS,
        "win_rates": WIN_RATES,
        "reliability": RELIABILITY,
        "conditions": CONDITIONS,
        "answers": ANSWERED,
    }
    tables = {name: schema.empty_table() for name, schema in empty.items()} | results.tables
    tables |= {"conditions": tables.get("qa_conditions", tables["conditions"])}
    model = index.settings.model(index.settings.model_name(STAGE))
    offline = model.provider == "offline" and len(tables.get("qa_judging", ())) > 0
    title = index_title(index)
    page = Comparison("", model.model_id, {}, offline, tables, results.warnings, title)
    write_page(index, page, url)


def report_page(comparison: Comparison) -> str:
    """Render the page. The result can always be encoded as UTF-8."""
    module_path = Path(__file__)
    environment = Environment(
        loader=FileSystemLoader(module_path.parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if type(value) is str else "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = (count, decimal, dollars, percent, plural, probability, short_count)
    formats: dict[str, Callable[..., str]] = {function.__name__: function for function in functions}
    environment.filters |= formats
    shares = "".join(f".r{rate}{{--share:{abs(2 * rate - 100)}%}}" for rate in range(101))
    style = module_path.with_suffix(".css").read_text("utf-8") + shares
    script = module_path.with_suffix(".js").read_text("utf-8")
    tables = comparison.tables
    verdicts = (tables["win_rates"], tables["judgements"])
    # Names are in table order. Conditions and criteria that occur only in other tables come last.
    pairs = (table[end] for table in verdicts for end in ("first", "second"))
    scored = [tables["figures"]["condition"]] if "figures" in tables else []
    conditions = _distinct(tables["conditions"]["name"], tables["answers"]["condition"], *pairs, *scored)
    judged = _distinct(*(table["criterion"] for table in (*verdicts, tables["reliability"])))
    names = {"conditions": conditions, "criteria": list(dict.fromkeys([*comparison.criteria, *judged]))}
    question_texts = dict(
        zip(*(tables["answers"][n].to_pylist() for n in ("question_id", "question")), strict=True)
    )
    ids = dict.fromkeys([*question_texts, *_distinct(tables["judgements"]["question_id"])])
    questions = {id_: question_texts.get(id_) or id_ for id_ in ids}
    blocks, complete = _question_blocks(comparison, names, questions)

    def hash_of(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return environment.get_template(module_path.with_suffix(".html.j2").name).render(
        evaluation=comparison,
        tables=tables,
        names_of=conditions,
        criteria=names["criteria"],
        questions=questions,
        style=Markup(style),
        script=Markup(script),
        policy=f"style-src {hash_of(style)}; script-src {hash_of(script)}",
        names=_json({kind: [clean(name) for name in group] for kind, group in names.items()}),
        blocks=blocks,
        complete=complete,
        replicates=len(_distinct(tables["judgements"]["replicate"])),
        significant=SIGNIFICANT,
        figures=_pair_numbers,
        rows_of=_rows,
        dash=MISSING,
        formats=formats | {"or_dash": lambda text: text or MISSING},
        plot_size=(WIDTH, HEIGHT),
        plot_box=BOX,
        scores=figures_by_type(tables["figures"]) if "figures" in tables else {},
        several_indexes=len(_distinct(tables["conditions"]["index"])) > 1,
        **_rates_and_costs(comparison, names),
    )


def _pair_numbers(row: dict[str, Any]) -> dict[str, str]:
    """Format the numbers of a pair from WIN_RATES."""
    return {
        "Win rate": decimal(row["win_rate"]),
        "95% interval": MISSING if row["low"] is None else f"{decimal(row['low'])} to {decimal(row['high'])}",
        "Questions": count(row["questions"]),
        "Ties": percent(row["ties"]),
        "Failed": count(row["failed"]),
        "z": decimal(row["z"], 2),
        "p": probability(row["p"]),
        "p after Holm": probability(row["p_holm"]),
        "Shapiro–Wilk p": probability(row["normal_p"]),
    }


def _rates_and_costs(comparison: Comparison, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return template variables: win rates, costs per question, and a plot per criterion.

    rates maps (criterion, row, column) to a row of WIN_RATES from the view of the row's condition; mean_rates
    maps (criterion, condition) to the mean over all others. Costs are in dollars if the costs of all
    conditions that used tokens are known and some are not zero; otherwise in tokens.
    """
    rates = {}
    rates_of: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in _rows(comparison.tables["win_rates"]):
        if row["win_rate"] is not None:
            criterion, first, second = row["criterion"], row["first"], row["second"]
            sides = {"win_rate": row["win_rate"], "low": row["high"], "high": row["low"]}
            mirrored = {name: None if rate is None else 100 - rate for name, rate in sides.items()}
            z = None if row["z"] is None else -row["z"]
            rates[criterion, first, second] = row
            rates[criterion, second, first] = row | mirrored | {"z": z, "first": second, "second": first}
    for (criterion, name, _), row in rates.items():
        rates_of[criterion, name].append(row["win_rate"])
    mean_rates = {key: fmean(values) for key, values in rates_of.items()}

    columns = (comparison.tables["answers"][name].to_pylist() for name in ("condition", "text"))
    n_answers = Counter(name for name, text in zip(*columns, strict=True) if text and text.strip())
    totals = [row for row in _rows(comparison.tables["conditions"]) if row["name"] in n_answers]
    tokens, usd = (
        {row["name"]: row[column] / n_answers[row["name"]] for row in totals if row[column] is not None}
        for column in ("tokens", "cost_usd")
    )
    in_dollars = any(usd.values()) and tokens.keys() <= usd.keys()
    costs = usd if in_dollars else tokens
    amount: Callable[[float], str] = (lambda x: f"${short_count(x)}") if in_dollars else short_count
    plots = {}
    for criterion in names["criteria"]:
        points = [(n, c, mean_rates[criterion, n]) for n, c in costs.items() if (criterion, n) in mean_rates]
        plots[criterion] = scatter_plot(points, amount) if points else None
    return {
        "rates": rates, "mean_rates": mean_rates, "costs": costs, "in_dollars": in_dollars, "plots": plots
    }  # fmt: skip


def _question_blocks(
    comparison: Comparison, names: Mapping[str, Sequence[str]], questions: Mapping[str, str]
) -> tuple[list[Markup], int]:
    """Return a JSON block per question, loaded by the script on demand, and the number of blocks with text.

    Conditions and criteria are numbers. The fields of a block:

        answers   HTML per condition; null for a missing answer
        errors    reason why an answer is missing, by condition
        reasons   distinct reasons of the judge
        judged    per pair (a before b) and criterion: a, b, criterion, verdict letters, reason numbers. The
                  letters `a` and `b` mean the winner, `t` a tie, `x` no verdict; capitals mean that b came
                  first
    """
    conditions, criteria = ({name: n for n, name in enumerate(group)} for group in names.values())
    answers = comparison.tables["answers"].select(["question_id", "condition", "text", "error"]).to_pylist()
    answer_rows = {(row["question_id"], row["condition"]): row for row in answers}
    judged: dict[str, dict[tuple[int, int, int], list[tuple[str, str]]]]
    judged = defaultdict(lambda: defaultdict(list))
    for row in comparison.tables["judgements"].sort_by([("replicate", "ascending")]).to_pylist():
        a, b = sorted((row["first"], row["second"]), key=conditions.__getitem__)
        letter = {a: "a", b: "b", "": "t"}.get(row["winner"], "x")
        if b == row["second" if row["swapped"] else "first"]:
            letter = letter.upper()
        group = conditions[a], conditions[b], criteria[row["criterion"]]
        judged[row["question_id"]][group].append((letter, row["reason"] or row["error"] or ""))

    blocks, remaining, complete = [], MAX_BYTES, 0
    for id_ in questions:
        groups = judged[id_].items()
        verdicts = [[*group, "".join(letter for letter, _ in votes)] for group, votes in groups]
        if remaining > 0:
            rows = [answer_rows.get((id_, name), {}) for name in conditions]
            texts = [row.get("text") for row in rows]
            number: dict[str, int] = {}
            reasons = [[number.setdefault(text, len(number)) for _, text in votes] for _, votes in groups]
            block = _json(
                {
                    "answers": [render_markdown(t) if t and t.strip() else None for t in texts],
                    "errors": {n: clean(row["error"]) for n, row in enumerate(rows) if row.get("error")},
                    "reasons": [clean(text) for text in number],
                    "judged": [[*row, numbers] for row, numbers in zip(verdicts, reasons, strict=True)],
                }
            )
            remaining -= len(block.encode())
        if remaining > 0:
            complete += 1
        else:
            block = _json({"judged": verdicts})
        blocks.append(block)
    return blocks, complete


def _json(value: Any) -> Markup:
    """Encode JSON for a script element. Its texts must be clean."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"))


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows, with None for non-finite numbers."""
    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        for row in table.to_pylist()
    ]


def _distinct(*columns: pa.ChunkedArray) -> list[Any]:
    values = (value for column in columns for value in column.unique().to_pylist())
    return list(dict.fromkeys(value for value in values if value is not None))


def clean(text: str) -> str:
    """Replace characters that are invalid in HTML or UTF-8 with U+FFFD."""
    return _INVALID.sub("\ufffd", text)


def render_markdown(text: str) -> str:
    """Render a model's Markdown as HTML.

    Images are replaced with their description, and only links to web addresses are kept. Headings have levels
    4 to 6, below the headings of the page.
    """
    text = clean(text)
    if len(text) > MAX_MARKDOWN:
        return f"<pre>{escape(text)}</pre>"
    return str(_MARKDOWN.render(text))


def _restrict(state: StateCore) -> None:
    for block in state.tokens:
        for token in (block, *(block.children or ())):
            # Drop all other attributes. The page's policy would refuse the `style` of table cells, for
            # example.
            token.attrs = {name: token.attrs[name] for name in ("href", "start") if name in token.attrs}
            if token.type == "image":
                token.type = "text"
            elif token.type == "fence":
                token.info = ""  # It would become a class.
            elif token.type == "link_open":
                token.attrs |= {"rel": "noopener noreferrer", "target": "_blank"}
            elif token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 3)}"


_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_MARKDOWN.validateLink = lambda url: _WEB_ADDRESS.match(url) is not None  # type: ignore[method-assign]
_MARKDOWN.core.ruler.push("restrict", _restrict)


def decimal(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}".replace("-", "−")


def count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def short_count(value: float) -> str:
    """Format a number, such as `950`, `12.5k` or `3M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.0%}"


def probability(p: float | None) -> str:
    """Format a probability, such as `< .001`, `.023` or `1`."""
    if p is None:
        return MISSING
    if p < 0.001:
        return "< .001"
    return "1" if p >= 0.9995 else f"{p:.3f}"[1:]


def dollars(usd: float | None) -> str:
    """Format dollars with at least two significant digits, such as `$1,204.50` or `$0.0031`."""
    if usd is None:
        return "unknown"
    digits = 1 - math.floor(math.log10(usd)) if 0 < usd < 1 else 2
    return f"${usd:,.{min(digits, 12)}f}" if usd else "$0"


def scatter_plot(
    points: Sequence[tuple[str, float, float]], x_text: Callable[[float], str]
) -> dict[str, Any]:
    """Lay out points (label, x from 0, y from 0 to 100) in a picture of WIDTH and HEIGHT.

    Returns x_ticks (x, text), y_ticks (y, value), dots (x, y, title) and labels (text, x, y, anchor).
    """
    low, high, ticks, log = amount_axis([x for _, x, _ in points])
    left, top, right, bottom = BOX

    def x_of(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if log else value / high
        return left + share * (right - left)

    dots: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for label, amount, rate in points:
        x, y = x_of(amount), bottom - rate / 100 * (bottom - top)
        dots.append({"x": x, "y": y, "title": f"{label}: {x_text(amount)}, {rate:.1f}"})
        text = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
        # Put the label on the side of the dot with more room, and move it towards the middle to avoid other
        # labels.
        text_x, anchor = (x + 9, "start") if x < (left + right) / 2 else (x - 9, "end")
        near = [o["y"] for o in labels if abs(o["x"] - text_x) < 6.4 * (len(o["text"]) + len(text))]
        base, step = y + 4, 14 if y < (top + bottom) / 2 else -14
        while any(abs(base - other) < 14 for other in near):
            base += step
        labels.append({"text": text, "x": text_x, "y": base, "anchor": anchor})
    return {
        "x_ticks": [(x_of(value), x_text(value)) for value in ticks],
        "y_ticks": [(bottom - value / 100 * (bottom - top), value) for value in range(0, 101, 25)],
        "dots": dots,
        "labels": labels,
    }


def amount_axis(values: Sequence[float]) -> tuple[float, float, list[float], bool]:
    """Return (low, high, ticks, is_logarithmic) of the x axis. A linear axis starts at 0."""
    smallest, largest = min(values), max(values)
    if smallest > TINY and smallest * LOG_RATIO <= largest:
        low, high = smallest / 1.5, largest * 1.5
        powers = [10.0**k for k in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)]
        fine = [m * power for power in powers for m in (1, 2, 5) if low <= m * power <= high]
        coarse = [power for power in powers if power >= low]
        return low, high, fine if len(fine) <= MAX_TICKS else coarse[:: -(-len(coarse) // MAX_TICKS)], True
    high = largest * 1.12 if largest > TINY else 1.0
    power = 10.0 ** math.floor(math.log10(high / MAX_TICKS))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= high / MAX_TICKS)
    return 0.0, high, [step * n for n in range(math.floor(high / step) + 1)], False
