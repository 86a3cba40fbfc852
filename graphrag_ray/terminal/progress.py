"""What people see while a run works: one live line per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from graphrag_ray import logs
from graphrag_ray.llm.accounting import Accounts
from graphrag_ray.terminal.safe import SafeConsole
from graphrag_ray.wording import plural

if TYPE_CHECKING:
    from rich.live import Live

    from graphrag_ray.engine.executor import Progress
    from graphrag_ray.llm.accounting import Limits
    from graphrag_ray.settings import Settings

LINE_EVERY_S = 5.0
"""Where there is no terminal, a stage says so often how far it is."""
RATE_OVER_S = 30.0
"""Rates and the time left follow what was done in so many seconds."""
BAR = 20
"""Characters of the bar."""

OFFLINE = "No model is configured: the offline engine answers (classical methods, no key, no cost)."


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
        self._seen: deque[tuple[float, float, float]] = deque([(0.0, 0.0, 0.0)])

    def note(self, p: Progress) -> None:
        if p.seconds < self._seen[-1][0]:  # another sweep of the same step
            self._seen = deque([(0.0, 0.0, 0.0)])
        self._seen.append((p.seconds, Amount.of(p).begun, p.accounts.total.total_tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= p.seconds - RATE_OVER_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        """What `Amount` counts, each second."""
        return self._rate(1)

    @property
    def tokens_per_minute(self) -> float:
        return self._rate(2) * 60

    def _rate(self, column: int) -> float:
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Amount:
    """How much of a sweep is done: counted in calls, where an item takes one or more, since items that take
    several calls all end late; else in items.

    done, begun   begun: with those in flight; half of these, where no limit says how fast they are sent
    total         calls that all items will take; None where it is not known how many items there are
    in_calls      whether calls are counted
    """

    done: float
    begun: float
    total: float | None
    in_calls: bool

    @staticmethod
    def of(p: Progress) -> Amount:
        calls = p.accounts.total.calls
        total = None if p.total is None else float(p.total)
        if p.turns_each is None or calls < p.done:
            return Amount(p.done, p.done, total, False)
        if total is not None:
            # The first to end are those that take few calls: what they took counts as far as all are done.
            known = p.done / total if total else 1.0
            each = p.turns_each * (1.0 - known) + (p.turns / p.done * known if p.done else 0.0)
            total = max(total * each, calls + total - p.done)
        in_flight = p.in_flight.calls if _limits(p) is not None else p.in_flight.calls / 2
        return Amount(calls, calls + in_flight, total, True)

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


def progress_line(p: Progress, recent: Recent, bar: bool = False) -> str:
    """stage, share, items done/total, calls, in flight, tokens per minute of the limit, cost of the run so
    far, time left."""
    amount = Amount.of(p)
    of = f"/{p.total:,}" if p.total is not None else ""
    parts = [f"{p.stage:<12}"]
    if amount.share is not None:
        if bar:
            full = int(BAR * amount.share)
            parts[0] += f" {'━' * full}{'╌' * (BAR - full)}"
        parts[0] += f" {int(100 * amount.share):>3}%"
    parts.append(f"{p.done:,}{of}")
    if amount.in_calls and amount.done > p.done:
        parts.append(plural(int(amount.done), "call"))
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
    left_s = seconds_left(p, amount, recent)
    if left_s is not None:
        parts.append(f"{duration(left_s)} left")
    return "  ".join(parts)


def seconds_left(p: Progress, amount: Amount, recent: Recent) -> float | None:
    """By the pace of the last half minute; at first, when that says little, by the limit where one is known.
    However few are left, the last call takes as long as most do. None where nothing tells."""
    if amount.total is None:
        return None
    left = max(0.0, amount.total - amount.begun)
    by_limit = _seconds_by_limit(p, left) if amount.in_calls else None
    usual_s = (p.accounts.total.latency.quantile(0.5) or 0.0) if p.in_flight.calls else 0.0
    if by_limit is not None and (p.seconds < RATE_OVER_S or recent.per_s <= 0):
        return by_limit + usual_s
    return left / recent.per_s + usual_s if recent.per_s > 0 else None


def _seconds_by_limit(p: Progress, calls: float) -> float | None:
    """The least time of so many calls like those that were sent, at the limits of the stage's model."""
    limits = _limits(p)
    sent = p.accounts.total.calls + p.in_flight.calls
    if limits is None or not sent:
        return None
    each = (p.accounts.total.total_tokens + p.in_flight.tokens) / sent
    needs = ((calls, limits.requests_per_minute), (calls * each, limits.tokens_per_minute))
    return max((60.0 * amount / limit for amount, limit in needs if limit), default=None)


def _limits(p: Progress) -> Limits | None:
    """Those of the stage's model; of the only one that has any, before the stage's first call has ended."""
    models = {model for stage, model in p.accounts.by_stage if stage == p.stage}
    known = [limits for m, limits in p.accounts.limits.items() if m in models or not models]
    return known[0] if len(known) == 1 else None


def _limit(p: Progress) -> str:
    """The tokens per minute that the stage's model allows, where they are known."""
    limits = _limits(p)
    return f" of {limits.tokens_per_minute:,.0f}" if limits and limits.tokens_per_minute else ""


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
