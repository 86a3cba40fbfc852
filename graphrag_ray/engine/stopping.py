"""Being told to stop: by Ctrl-C, or by SIGTERM, which job and container managers send.

Told once, a run waits for the calls that are in flight, since they are paid for, and ends. Told twice it ends
at once. Where no calls are made, once is enough: what is computed there costs nothing to compute again.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from graphrag_ray.base.errors import Interrupted, Terminated
from graphrag_ray.base.wording import plural
from graphrag_ray.llm.accounting import InFlight

GRACE_S = {signal.SIGINT: 30.0, signal.SIGTERM: 10.0}
"""How long what is in flight is waited for. Kubernetes kills 30 s after SIGTERM, `ray job stop` after 3."""
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@dataclass
class Stop:
    """What a run was told. Where calls may be in flight the executor is `while_asking`, and asks `check`.

    say   tells people
    """

    told: signal.Signals | None = None
    twice: bool = False
    asking: bool = False
    _broken_off: bool = False
    say: Callable[[str], None] = lambda message: None

    @property
    def grace_s(self) -> float:
        return GRACE_S[self.told] if self.told else max(GRACE_S.values())

    @contextmanager
    def while_asking(self) -> Iterator[None]:
        """Around a sweep, which asks `check`. Raises Interrupted at its end where a signal came after its
        last look: nobody else would hear it."""
        self.asking = True
        try:
            yield
        finally:
            self.asking = False
        self.check(InFlight())

    def check(self, in_flight: InFlight) -> None:
        """Raises Interrupted once the run was told to stop."""
        if self.told is None:
            return
        if in_flight.calls:
            self.say(
                f"{NAMES[self.told]}: waiting for {plural(in_flight.calls, 'call')} in flight, "
                f"{self.grace_s:.0f} s at most. Once more stops at once."
            )
        raise self.error()

    def error(self) -> Interrupted:
        """What the run ends with."""
        name = NAMES[self.told or signal.SIGINT]
        kind = Terminated if self.told == signal.SIGTERM else Interrupted
        if self._broken_off:
            return kind(
                f"stopped at once by a second {name}. What was answered up to a few seconds ago is kept: run "
                "the same command again to continue."
            )
        return kind(f"stopped by {name}. What was answered is kept: run the same command again to continue.")

    def tell(self, number: int, frame: FrameType | None = None) -> None:
        """A signal came."""
        self.twice = self.told is not None
        self.told = self.told or signal.Signals(number)
        self._broken_off = self.twice and self.asking
        if self.twice or not self.asking:
            raise KeyboardInterrupt


@contextmanager
def listening(stop: Stop) -> Iterator[None]:
    """Hear signals as long as the block lasts, and end with Interrupted where one came. In the main thread;
    in any other nothing is heard, and nothing changes."""
    heard = list(GRACE_S) if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.signal(number, stop.tell) for number in heard}
    show = sys.unraisablehook

    def shown(fault: sys.UnraisableHookArgs) -> None:
        # A signal that came within a finalizer: Python drops what that raises. The next `check` raises.
        if not issubclass(fault.exc_type, KeyboardInterrupt):
            show(fault)

    sys.unraisablehook = shown
    try:
        yield
    except KeyboardInterrupt:
        raise stop.error() from None
    finally:
        sys.unraisablehook = show
        for number, handler in before.items():
            signal.signal(number, handler)
