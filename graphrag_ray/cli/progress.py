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
from graphrag_ray.cli.console import console_of, duration
from graphrag_ray.engine.observer import Observer, in_notebook
from graphrag_ray.engine.sweep_pace import RecentRates, StagePace

if TYPE_CHECKING:
    from rich.live import Live

    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.executor import SweepProgress

LINE_EVERY_S = 5.0
"""Interval of progress lines without a live display."""
DRAWN_EVERY_S = 0.5
"""Interval of updates in a notebook, where each is a message."""
BAR, SHORT_BAR = 20, 10
"""Characters of the bar, and of that on a narrow terminal."""
NARROW = 100
SHORTEST_LEFT_S = 1.5
_WORK = frozenset({"made", "derived", "kept_reports"})
"""Counts of the work of a step, which a reused step does not show."""

OFFLINE = "No model is configured: using the offline engine (classical methods, no API key, no cost)."
EMBEDDED_OFFLINE = (
    "Using the bundled small embedding model, free of charge. Set models.embedding for another."
)


def observer_for_people(quiet: bool = False) -> Observer:
    """A progress display; a silent observer if `quiet`, or if log lines are JSON."""
    return Observer() if quiet or logs.as_json() else ProgressDisplay()


class ProgressDisplay(Observer):
    """Shows the progress of a run."""

    def __init__(self) -> None:
        self._console = console_of(stderr=True)
        self._live: Live | None = None
        self._output = ""  # id of a notebook output
        self._lines: list[str] = []
        self._drawn_at = 0.0
        self._current: tuple[str, float] | None = None  # step, and when it started
        self._pace: StagePace | None = None
        self._printed_at = 0.0
        self._recent = RecentRates()
        self._price_noted = False
        self._settings: Settings | None = None

    def __enter__(self) -> Self:
        if in_notebook():
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
        self._draw(at_once=True)

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
        if settings.model(settings.model_name(stage)).provider == "offline":
            self.message(OFFLINE)
            return
        embeds = stage == "extract" and settings.embeddings.enabled
        if embeds and settings.model(settings.model_name("embed")).provider == "offline":
            self.message(EMBEDDED_OFFLINE)

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
        self._recent.note(p)
        self._pace = StagePace.of(p, self._recent)
        stage = p.accounts.unpriced_stage or p.earlier.unpriced_stage
        if stage and self._settings and not self._price_noted:
            self._price_noted = True
            name = self._settings.model_name(stage)
            self.message(f"The price of model {name!r} is unknown. To see the cost, use {price_hint(name)}")
        if self._current is None:
            self._current = p.stage, time.monotonic()
        self._draw()
        if not self._live and not self._output and time.monotonic() - self._printed_at >= LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self._print(self._line())

    def _line(self) -> Text:
        """The current step."""
        if self._current is None:
            return Text()
        name, since = self._current
        if self._pace is None:
            return Text(f"{name:<12} … {duration(time.monotonic() - since)}")
        return Text(progress_line(self._pace, name, self._width(), bar=self._live is not None), no_wrap=True)

    def _width(self) -> int | None:
        return self._console.width if self._live else None

    def _print(self, line: Text) -> None:
        if self._output:
            self._lines.append(line.plain)
            self._draw(at_once=True)
        else:
            (self._live.console if self._live else self._console).print(line)

    def _draw(self, at_once: bool = False) -> None:
        """Update the output of a notebook cell."""
        if self._output and (at_once or time.monotonic() - self._drawn_at >= DRAWN_EVERY_S):
            from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

            text = "\n".join([*self._lines, self._line().plain])
            # As plain text, which is never interpreted as HTML.
            display({"text/plain": text}, raw=True, display_id=self._output, update=self._drawn_at > 0)
            self._drawn_at = time.monotonic()


def progress_line(p: StagePace, name: str | None = None, width: int | None = None, bar: bool = False) -> str:
    """Step, share done, calls or items, calls in flight, tokens per minute, cost, and time left.

    The least important parts are dropped from a line longer than `width`.
    """
    # The parts with the highest number are dropped first; 0: never.
    parts = [(0, f"{name or p.stage:<12}")]
    if p.share is not None:
        size = SHORT_BAR if width and width < NARROW else BAR
        full = int(size * p.share)
        if bar:
            parts.append((1, f"{'━' * full}{'╌' * (size - full)}"))
        parts.append((0, f"{int(100 * p.share):>3}%"))
    # The count that the share is based on comes first.
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
        parts.append((3, f"${p.cost_usd:,.4f}" if p.cost_usd < 1 else f"${p.cost_usd:,.2f}"))
    elif p.cost_usd is None:
        parts.append((7, "cost unknown"))
    if p.left_s is not None and p.left_s >= SHORTEST_LEFT_S:
        parts.append((2, f"{duration(p.left_s)} left"))
    while width and len("  ".join(text for _, text in parts)) >= width:
        least = max(parts, key=lambda part: part[0])
        if not least[0]:
            break
        parts.remove(least)
    return "  ".join(text for _, text in parts)


def step_line(
    name: str, seconds: float, counts: Mapping[str, Any], reused: bool, width: int | None = None
) -> Text:
    """A finished step: its duration, and as many of its counts as fit into `width`."""
    duration_ = "unchanged" if reused else f"{seconds:.1f} s"
    shown = [_count(k, v) for k, v in counts.items() if v and not (reused and k in _WORK)]
    while width and shown and 25 + len("  ".join(shown)) >= width:
        shown.pop()
    return Text.assemble((f"{name:<12}", "bold"), f" {duration_:>10}  ", ("  ".join(shown), "dim"))


def _count(name: str, value: Any) -> str:
    """A count of a finished step."""
    if name == "asked":
        return f"{value['items']:,} of {value['of']:,} {value['called']}"
    if name == "parts_kept":
        return f"{value['kept']:,} of {value['of']:,} parts kept"
    if name == "components":
        largest = f", the largest {value['largest_share']:.0%}" if value["count"] > 1 else ""
        return f"{plural(value['count'], 'component')}{largest}"
    return f"{name.replace('_', ' ')} {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
