"""What people see while a run works: on a terminal and in a notebook one line a step, of which the last one
moves; plain lines elsewhere."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.text import Text

from graphrag_ray.base import logs
from graphrag_ray.base.wording import plural, price_setting
from graphrag_ray.cli.console import console_of, duration
from graphrag_ray.engine.observer import Observer, in_notebook
from graphrag_ray.engine.pace import Recent, StagePace

if TYPE_CHECKING:
    from rich.live import Live

    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.executor import SweepProgress

LINE_EVERY_S = 5.0
"""Where nothing can move, a step says so often how far it is."""
DRAWN_EVERY_S = 0.5
"""In a notebook, where every change is a message."""
BAR, SHORT_BAR = 20, 10
"""Characters of the bar; of that in a narrow terminal."""
NARROW = 100
SHORTEST_LEFT_S = 1.5
_WORK = frozenset({"made", "derived", "kept_reports"})
"""Counts of what a run did: of a step that was taken as it was they are not told."""

OFFLINE = "No model is configured: the offline engine answers (classical methods, no key, no cost)."
EMBEDDED_OFFLINE = "Embeddings are made by the bundled small model, free; models.embedding names another."


def observer_for_people(quiet: bool = False) -> Observer:
    """One for people; a silent one with `quiet`, and where each line that is logged is JSON for a program."""
    return Observer() if quiet or logs.as_json() else ProgressDisplay()


class ProgressDisplay(Observer):
    """Shows a run as it goes."""

    def __init__(self) -> None:
        self._console = console_of(stderr=True)
        self._live: Live | None = None
        self._output = ""  # the name of a notebook's output
        self._lines: list[str] = []
        self._drawn_at = 0.0
        self._doing: tuple[str, float] | None = None
        self._pace: StagePace | None = None
        self._said_at = 0.0
        self._recent = Recent()
        self._price_asked = False

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._doing = None
        if self._live:
            self._live.stop()
            self._live = None
        self._draw(at_once=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        self._doing, self._pace = (what, time.monotonic()), None
        if not self._live:
            self.note(f"{what} …")
        try:
            yield
        finally:
            self._doing = None

    def checked(self, settings: Settings, stage: str = "extract") -> None:
        if settings.model(settings.model_name(stage)).provider == "offline":
            self.note(OFFLINE)
            return
        embeds = stage == "extract" and settings.embeddings.enabled
        if embeds and settings.model(settings.model_name("embed")).provider == "offline":
            self.note(EMBEDDED_OFFLINE)

    def note(self, message: str) -> None:
        self._print(Text(message, style="dim"))

    def step_started(self, name: str) -> None:
        self._doing, self._pace = (name, time.monotonic()), None
        self._said_at = time.monotonic()
        self._recent = Recent()
        self._draw()

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        self._doing = None
        self._print(step_line(name, seconds, counts, reused, self._width()))

    def progress(self, p: SweepProgress) -> None:
        self._recent.note(p)
        self._pace = StagePace.of(p, self._recent)
        if self._pace.cost_usd is None and not self._price_asked:
            self._price_asked = True
            self.note(f"The price of a model is not known, nor what this costs: {price_setting()}")
        if self._doing is None:
            self._doing = p.stage, time.monotonic()
        self._draw()
        if not self._live and not self._output and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self._print(self._line())

    def _line(self) -> Text:
        """What is being done now."""
        if self._doing is None:
            return Text()
        name, since = self._doing
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
        """The output of a notebook's cell, where there is one."""
        if self._output and (at_once or time.monotonic() - self._drawn_at >= DRAWN_EVERY_S):
            from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

            text = "\n".join([*self._lines, self._line().plain])
            # Text alone: what stands in it is never read as HTML.
            display({"text/plain": text}, raw=True, display_id=self._output, update=self._drawn_at > 0)
            self._drawn_at = time.monotonic()


def progress_line(p: StagePace, name: str | None = None, width: int | None = None, bar: bool = False) -> str:
    """step, share, calls or items of all, how many are in flight, tokens per minute of the limit, cost of the
    run so far, time left. What matters least is left out where the line would be longer than `width`."""
    # Each with how soon it is left out; 0: never.
    parts = [(0, f"{name or p.stage:<12}")]
    if p.share is not None:
        size = SHORT_BAR if width and width < NARROW else BAR
        full = int(size * p.share)
        if bar:
            parts.append((1, f"{'━' * full}{'╌' * (size - full)}"))
        parts.append((0, f"{int(100 * p.share):>3}%"))
    # Beside the share stands what gives this very number.
    items = f"{p.done:,}{f'/{p.total:,}' if p.total is not None else ''}"
    if p.calls <= p.done:
        parts.append((0, items))
    else:
        of = f"/{p.calls_total:,}" if p.calls_total else ""
        parts += [(0, f"{p.calls:,}{of} calls"), (4, f"{items} done")]
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
    """A step that has ended: how long it took, what it came to, as far as the line is no longer than
    `width`."""
    how = "unchanged" if reused else f"{seconds:.1f} s"
    shown = [_told(k, v) for k, v in counts.items() if v and not (reused and k in _WORK)]
    while width and shown and 25 + len("  ".join(shown)) >= width:
        shown.pop()
    return Text.assemble((f"{name:<12}", "bold"), f" {how:>10}  ", ("  ".join(shown), "dim"))


def _told(name: str, value: Any) -> str:
    """A count of a step, as it is shown at its end."""
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
