"""Progress of a run: a live line per step on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from rich.text import Text

from graphrag_ray.base import logs
from graphrag_ray.base.wording import plural, price_hint
from graphrag_ray.cli.console import format_duration, format_usd, make_console
from graphrag_ray.engine.observer import Observer, is_notebook
from graphrag_ray.engine.sweep_pace import RecentRates, StagePace

if TYPE_CHECKING:
    from rich.live import Live

    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.executor import SweepProgress

LINE_INTERVAL_S = 5.0
"""Interval between progress lines without a live display."""
REDRAW_INTERVAL_S = 0.5
"""Interval between notebook updates, each of which sends a message to the browser."""
BAR, SHORT_BAR = 20, 10
"""Width of the progress bar, normally and on a narrow terminal."""
NARROW = 100
"""Below this width, a terminal is narrow."""
MIN_TIME_LEFT_S = 1.5
"""A shorter remaining time is not displayed."""
_WORK_COUNTS = frozenset({"made", "derived", "kept_reports"})
"""Counts that describe work done. They are hidden for reused steps."""

OFFLINE = "No model is configured: using the offline engine (classical methods, no API key, no cost)."
NAMES_ONLY = "Building from names only: the offline engine extracts them, and no language model is called."
OFFLINE_EMBEDDINGS = (
    "Using the small bundled embedding model (free). Set models.embedding to use another one."
)


def default_observer(quiet: bool = False) -> Observer:
    """Return a progress display, or a silent observer if `quiet` is set or if log lines are JSON."""
    return Observer() if quiet or logs.as_json() else ProgressDisplay()


class ProgressDisplay(Observer):
    """Shows the progress of a run."""

    def __init__(self) -> None:
        self._console = make_console(stderr=True)
        self._live: Live | None = None
        self._output = ""  # id of a notebook output
        self._lines: list[str] = []
        self._drawn_at = 0.0
        self._current: tuple[str, float] | None = None  # step, and when it started
        self._pace: StagePace | None = None
        self._printed_at = 0.0
        self._recent = RecentRates()
        self._settings: Settings | None = None
        self._price_noted = False

    def __enter__(self) -> Self:
        if is_notebook():
            self._output = f"graphrag-ray-{uuid.uuid4().hex}"
        elif self._console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._current = None
        if self._live:
            self._live.stop()
            self._live = None
        self._draw(force=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        self._current, self._pace = (what, time.monotonic()), None
        if not self._live:
            self.message(f"{what} …")
        try:
            yield
        finally:
            self._current = None

    def run_started(self, settings: Settings, stage: str = "extract") -> None:
        self._settings = settings
        indexes = stage == "extract"
        if indexes and settings.build == "names":
            self.message(NAMES_ONLY)
        elif settings.model(settings.model_name(stage)).provider == "offline":
            self.message(OFFLINE)
            return
        embeds = indexes and settings.embeddings.enabled
        if embeds and settings.model(settings.model_name("embed")).provider == "offline":
            self.message(OFFLINE_EMBEDDINGS)

    def message(self, message: str) -> None:
        self._print(Text(message, style="dim"))

    def step_started(self, name: str) -> None:
        self._current, self._pace = (name, time.monotonic()), None
        self._printed_at = time.monotonic()
        self._recent = RecentRates()
        self._draw()

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        self._current = None
        self._print(step_line(name, seconds, counts, reused, self._width()))

    def progress(self, p: SweepProgress) -> None:
        self._recent.add(p)
        self._pace = StagePace.of(p, self._recent)
        stage = p.accounts.unpriced_stage or p.earlier.unpriced_stage
        if stage and self._settings and not self._price_noted:
            self._price_noted = True
            name = self._settings.model_name(stage)
            self.message(f"The price of model {name!r} is unknown. To see the cost, use {price_hint(name)}")
        if self._current is None:
            self._current = p.stage, time.monotonic()
        self._draw()
        if not self._live and not self._output and time.monotonic() - self._printed_at >= LINE_INTERVAL_S:
            self._printed_at = time.monotonic()
            self._print(self._line())

    def _line(self) -> Text:
        """Format the current step."""
        if self._current is None:
            return Text()
        name, since = self._current
        if self._pace is None:
            return Text(f"{name:<12} … {format_duration(time.monotonic() - since)}")
        return Text(progress_line(self._pace, name, self._width(), bar=self._live is not None), no_wrap=True)

    def _width(self) -> int | None:
        return self._console.width if self._live else None

    def _print(self, line: Text) -> None:
        if self._output:
            self._lines.append(line.plain)
            self._draw(force=True)
        else:
            (self._live.console if self._live else self._console).print(line)

    def _draw(self, force: bool = False) -> None:
        """Update the output of a notebook cell."""
        if self._output and (force or time.monotonic() - self._drawn_at >= REDRAW_INTERVAL_S):
            from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

            text = "\n".join([*self._lines, self._line().plain])
            # Plain text is never interpreted as HTML.
            display({"text/plain": text}, raw=True, display_id=self._output, update=self._drawn_at > 0)
            self._drawn_at = time.monotonic()


def progress_line(p: StagePace, name: str | None = None, width: int | None = None, bar: bool = False) -> str:
    """Format a progress line: step, share done, calls or items, calls in flight, tokens/min, cost, time left.

    If the line is longer than `width`, its least important parts are dropped.
    """
    # Parts with the highest number are dropped first. Parts with number 0 are never dropped.
    parts = [(0, f"{name or p.stage:<12}")]
    if p.share is not None:
        size = SHORT_BAR if width and width < NARROW else BAR
        filled = int(size * p.share)
        if bar:
            parts.append((1, f"{'━' * filled}{'╌' * (size - filled)}"))
        parts.append((0, f"{int(100 * p.share):>3}%"))
    # The share is based on the count that comes first.
    items = f"{p.done:,}{f'/{p.total:,}' if p.total is not None else ''}"
    if p.calls <= p.done:
        parts.append((0, items))
    else:
        total = f"/{p.calls_total:,}" if p.calls_total else ""
        parts += [(0, f"{p.calls:,}{total} calls"), (4, f"{items} done")]
    if p.failed:
        parts.append((2, f"{p.failed:,} failed"))
    if p.in_flight:
        parts.append((5, f"{p.in_flight:,} in flight"))
    if p.seconds > 1 and p.total_tokens:
        limit = f" of {p.tokens_per_minute_limit:,.0f}" if p.tokens_per_minute_limit else ""
        parts.append((6, f"{p.tokens_per_minute:,.0f}{limit} tokens/min"))
    if p.cost_usd:
        parts.append((3, format_usd(p.cost_usd)))
    elif p.cost_usd is None:
        parts.append((7, "cost unknown"))
    if p.left_s is not None and p.left_s >= MIN_TIME_LEFT_S:
        parts.append((2, f"{format_duration(p.left_s)} left"))
    while width and len("  ".join(text for _, text in parts)) >= width:
        least_important = max(parts, key=lambda part: part[0])
        if not least_important[0]:
            break
        parts.remove(least_important)
    return "  ".join(text for _, text in parts)


def step_line(
    name: str, seconds: float, counts: Mapping[str, Any], reused: bool, width: int | None = None
) -> Text:
    """Format a finished step: its duration, and as many of its counts as fit into `width`."""
    duration = "unchanged" if reused else f"{seconds:.1f} s"
    texts = [
        _format_count(k, v)
        for k, v in counts.items()
        if v and k != "type_conflict_examples" and not (reused and k in _WORK_COUNTS)
    ]
    while width and texts and 25 + len("  ".join(texts)) >= width:
        texts.pop()
    return Text.assemble((f"{name:<12}", "bold"), f" {duration:>10}  ", ("  ".join(texts), "dim"))


def _format_count(name: str, value: Any) -> str:
    if name == "asked":
        return f"{value['items']:,} of {value['total']:,} {value['noun']} processed"
    if name == "reused_parts":
        return f"{value['reused']:,} of {value['total']:,} parts reused"
    if name == "components":
        largest = f" (largest: {value['largest_share']:.0%} of entities)" if value["count"] > 1 else ""
        return f"{plural(value['count'], 'component')}{largest}"
    return f"{name.replace('_', ' ')} {_format_value(value)}"


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_format_value(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
