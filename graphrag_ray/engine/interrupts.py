"""Stopping a run with Ctrl-C, or with SIGTERM from a job or container manager.

After the first signal, a run waits for its calls in flight, which are already paid for, and ends. A second
signal ends it immediately, as does the first one without calls: computations cost nothing to repeat.
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
"""How long to wait for calls in flight. Kubernetes kills 30 s after SIGTERM, `ray job stop` after 3 s."""
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@dataclass
class InterruptState:
    """The signals that a run received.

    Attributes:
        received: The first signal.
        polled: Whether calls may be in flight. If so, the executor polls `check`.
        notify: Shows a message to the user.
    """

    received: signal.Signals | None = None
    repeated: bool = False
    polled: bool = False
    _immediate: bool = False
    notify: Callable[[str], None] = lambda message: None

    @property
    def grace_s(self) -> float:
        return GRACE_S[self.received] if self.received else max(GRACE_S.values())

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Wrap a sweep that polls `check`. Raises Interrupted for a signal received after its last poll."""
        self.polled = True
        try:
            yield
        finally:
            self.polled = False
        self.check(InFlight())

    def check(self, in_flight: InFlight) -> None:
        """Raise Interrupted if a signal was received."""
        if self.received is None:
            return
        if in_flight.calls:
            self.notify(
                f"{NAMES[self.received]}: waiting up to {self.grace_s:.0f} s for "
                f"{plural(in_flight.calls, 'call')} in flight. Repeat it to stop now."
            )
        raise self.error()

    def error(self) -> Interrupted:
        """Create the error with which the run ends."""
        name = NAMES[self.received or signal.SIGINT]
        kind = Terminated if self.received == signal.SIGTERM else Interrupted
        if self._immediate:
            return kind(
                f"Stopped immediately by a second {name}. All but the last replies are stored; run the "
                "same command again to continue."
            )
        return kind(f"Stopped by {name}. Replies are stored; run the same command again to continue.")

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        self.repeated = self.received is not None
        self.received = self.received or signal.Signals(number)
        self._immediate = self.repeated and self.polled
        if self.repeated or not self.polled:
            raise KeyboardInterrupt


@contextmanager
def handle_signals(stop: InterruptState) -> Iterator[None]:
    """Handle signals for the duration of the block. Raises Interrupted if a signal ends it.

    Has no effect outside the main thread.
    """
    signals = list(GRACE_S) if threading.current_thread() is threading.main_thread() else []
    previous_handlers = {number: signal.signal(number, stop.handle) for number in signals}
    original_hook = sys.unraisablehook

    def hook(fault: sys.UnraisableHookArgs) -> None:
        # Python only reports an exception that a signal handler raises within a finalizer. Hide that report,
        # because the next `check` raises the error.
        if not issubclass(fault.exc_type, KeyboardInterrupt):
            original_hook(fault)

    sys.unraisablehook = hook
    try:
        yield
    except KeyboardInterrupt:
        raise stop.error() from None
    finally:
        sys.unraisablehook = original_hook
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
