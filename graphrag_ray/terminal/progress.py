"""What people see while a run works: one live line per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from graphrag_ray.engine.executor import Progress
from graphrag_ray.llm.accounting import Accounts, Limits
from graphrag_ray.settings import Settings
from graphrag_ray.wording import plural

LINE_EVERY_S = 5.0
"""Where there is no terminal, a stage says so often how far it is."""
RATE_OVER_S = 30.0
"""Rates and the time left follow what was done in so many seconds."""
BAR = 20
"""Characters of the bar."""

OFFLINE = "No model is configured: the offline engine answers (classical methods, no key, no cost)."


def console_of(stderr: bool = False) -> Console:
    """Prints what it is given: brackets and colons in a text of the corpus are no markup and no emoji.
    Wide where no terminal says otherwise, since files and pipes have no margin."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    return console


class Observer:
    """Shows a run as it goes. Nothing with `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = console_of(stderr=True)
        self._live: Live | None = None
        self._line = Text()
        self._said_at = 0.0
        self._recent = Recent()

    def __enter__(self) -> Observer:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def checked(self, settings: Settings) -> None:
        """Settings are in order; the run starts."""
        if settings.model(settings.model_name("extract")).provider == "offline":
            self.note(OFFLINE)

    def note(self, message: str) -> None:
        self._print(Text(message, style="dim"))

    def step_started(self, name: str) -> None:
        self._line = Text(f"{name:<12} …")
        self._said_at = time.monotonic()
        self._recent = Recent()
        self._refresh()

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        shown = "  ".join(_told(k, v) for k, v in counts.items() if v)
        how = "unchanged" if reused else f"{seconds:.1f} s"
        self._line = Text()
        self._print(Text.assemble((f"{name:<12}", "bold"), f" {how:>10}  ", (shown, "dim")))

    def progress(self, p: Progress) -> None:
        """Called a few times a second during a sweep."""
        self._recent.note(p)
        self._line = Text(progress_line(p, self._recent, bar=self._live is not None))
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


class Recent:
    """What was done in the last RATE_OVER_S seconds of a sweep."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def note(self, p: Progress) -> None:
        if p.seconds < self._seen[-1][0]:  # another sweep of the same step
            self._seen = deque([(0.0, 0, 0)])
        self._seen.append((p.seconds, p.done, p.accounts.total.total_tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= p.seconds - RATE_OVER_S:
            self._seen.popleft()

    @property
    def items_per_s(self) -> float:
        return self._rate(1)

    @property
    def tokens_per_minute(self) -> float:
        return self._rate(2) * 60

    def _rate(self, column: int) -> float:
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else 0.0


def progress_line(p: Progress, recent: Recent, bar: bool = False) -> str:
    """stage, done/total, in flight, tokens per minute of the limit, cost of the run so far, time left."""
    of = f"/{p.total:,}" if p.total is not None else ""
    parts = [f"{p.stage:<12}"]
    if bar and p.total:
        full = min(BAR, BAR * p.done // p.total)
        parts[0] += f" {'━' * full}{'╌' * (BAR - full)}"
    parts[0] += f" {p.done:,}{of}"
    if p.in_flight.calls:
        parts.append(f"{p.in_flight.calls:,} in flight")
    if p.failed:
        parts.append(f"{p.failed:,} failed")
    if p.seconds > 1:
        parts.append(f"{recent.tokens_per_minute:,.0f}{_limit(p)} tokens/min")
    total = Accounts.merged([p.before, p.accounts]).total
    if total.cost_usd:
        parts.append(f"${total.cost_usd:,.4f}" if total.cost_usd < 1 else f"${total.cost_usd:,.2f}")
    elif total.cost_usd is None:
        parts.append("cost unknown")
    if p.total and recent.items_per_s > 0:
        parts.append(f"{duration((p.total - p.done) / recent.items_per_s)} left")
    return "  ".join(parts)


def _limit(p: Progress) -> str:
    """The tokens per minute that the stage's model allows, where they are known."""
    models = {model for stage, model in p.accounts.by_stage if stage == p.stage}
    limits = [p.accounts.limits.get(m, Limits(None, None)).tokens_per_minute for m in models]
    known = [limit for limit in limits if limit is not None]
    return f" of {sum(known):,.0f}" if known and len(known) == len(limits) else ""


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
