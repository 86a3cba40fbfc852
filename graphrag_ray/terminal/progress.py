"""What people see while a run works: one live line per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from graphrag_ray import logs
from graphrag_ray.engine.pace import Pace, Recent
from graphrag_ray.terminal.safe import SafeConsole
from graphrag_ray.wording import plural

if TYPE_CHECKING:
    from rich.live import Live

    from graphrag_ray.engine.executor import Progress
    from graphrag_ray.settings import Settings

LINE_EVERY_S = 5.0
"""Where there is no terminal, a stage says so often how far it is."""
BAR = 20
"""Characters of the bar."""

OFFLINE = "No model is configured: the offline engine answers (classical methods, no key, no cost)."
EMBEDDED_OFFLINE = "Embeddings are made by the bundled small model, free; models.embedding names another."


def console_of(stderr: bool = False) -> Console:
    """Prints what it is given: brackets and colons in a text of the corpus are no markup and no emoji.
    Nor does it steer the terminal. Wide where no terminal says otherwise: files and pipes have no margin."""
    console = SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    return console


class Observer:
    """Shows a run as it goes. Nothing with `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet or logs.as_json()  # lines for a program are not mixed with lines for people
        self._console = console_of(stderr=True)
        self._live: Live | None = None
        self._line = Text()
        self._said_at = 0.0
        self._recent = Recent()

    def __enter__(self) -> Observer:
        if not self._quiet and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def checked(self, settings: Settings, stage: str = "extract") -> None:
        """Settings are in order; the run starts, with this stage."""
        if settings.model(settings.model_name(stage)).provider == "offline":
            self.note(OFFLINE)
        elif stage == "extract" and _embeds_offline(settings):
            self.note(EMBEDDED_OFFLINE)

    def note(self, message: str) -> None:
        self._print(Text(message, style="dim"))

    def step_started(self, name: str) -> None:
        self._line = Text(f"{name:<12} …")
        self._said_at = time.monotonic()
        self._recent = Recent()
        self._refresh()

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        self._line = Text()
        self._print(step_line(name, seconds, counts, reused))

    def progress(self, p: Progress) -> None:
        """Called a few times a second during a sweep."""
        self._recent.note(p)
        self._line = Text(progress_line(Pace.of(p, self._recent), bar=self._live is not None))
        if self._live:
            self._refresh()
        elif not self._quiet and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self._print(self._line)

    def _print(self, line: Text) -> None:
        if self._quiet:
            return
        (self._live.console if self._live else self._console).print(line, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live:
            self._live.update(self._line)


def _embeds_offline(settings: Settings) -> bool:
    embeds = settings.embeddings.enabled
    return embeds and settings.model(settings.model_name("embed")).provider == "offline"


def progress_line(p: Pace, bar: bool = False) -> str:
    """stage, share, items done/total, calls, in flight, tokens per minute of the limit, cost of the run so
    far, time left."""
    of = f"/{p.total:,}" if p.total is not None else ""
    parts = [f"{p.stage:<12}"]
    if p.share is not None:
        if bar:
            full = int(BAR * p.share)
            parts[0] += f" {'━' * full}{'╌' * (BAR - full)}"
        parts[0] += f" {int(100 * p.share):>3}%"
    parts.append(f"{p.done:,}{of}")
    if p.calls > p.done:
        parts.append(plural(p.calls, "call"))
    if p.in_flight:
        parts.append(f"{p.in_flight:,} in flight")
    if p.failed:
        parts.append(f"{p.failed:,} failed")
    if p.seconds > 1:
        limit = f" of {p.tokens_per_minute_limit:,.0f}" if p.tokens_per_minute_limit else ""
        parts.append(f"{p.tokens_per_minute:,.0f}{limit} tokens/min")
    if p.cost_usd:
        parts.append(f"${p.cost_usd:,.4f}" if p.cost_usd < 1 else f"${p.cost_usd:,.2f}")
    elif p.cost_usd is None:
        parts.append("cost unknown")
    if p.left_s is not None:
        parts.append(f"{duration(p.left_s)} left")
    return "  ".join(parts)


def step_line(name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> Text:
    """A step that has ended: how long it took, what it came to."""
    shown = "  ".join(_told(k, v) for k, v in counts.items() if v)
    how = "unchanged" if reused else f"{seconds:.1f} s"
    return Text.assemble((f"{name:<12}", "bold"), f" {how:>10}  ", (shown, "dim"))


def _told(name: str, value: Any) -> str:
    """A count of a step, as it is shown at its end."""
    if name == "components":
        largest = f", the largest {value['largest_share']:.0%}" if value["count"] > 1 else ""
        return f"{plural(value['count'], 'component')}{largest}"
    return f"{name.replace('_', ' ')} {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
