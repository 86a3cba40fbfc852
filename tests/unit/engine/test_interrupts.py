"""The first signal waits for calls in flight. A second one, or one without calls, stops immediately."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from graphrag_ray.base.errors import Interrupted, Terminated
from graphrag_ray.engine.interrupts import InterruptState, handle_signals
from graphrag_ray.llm.accounting import InFlight


def test_a_first_signal_during_a_sweep_ends_the_run_at_its_next_check():
    messages: list[str] = []
    stop = InterruptState(polled=True, notify=messages.append)
    stop.check(InFlight(3))
    stop.handle(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"Stopped by Ctrl-C.*same command again") as raised:
        stop.check(InFlight(3))
    assert raised.value.exit_code == 130 and "3 calls in flight" in messages[0]


def test_a_signal_after_the_last_check_ends_the_run_with_the_sweep():
    stop = InterruptState()
    with pytest.raises(Interrupted, match="Stopped by Ctrl-C"), stop.polling():
        stop.handle(signal.SIGINT)
    assert not stop.polled


def test_sigterm_waits_less_and_has_its_own_exit_code():
    stop = InterruptState(polled=True)
    patient = stop.grace_s
    stop.handle(signal.SIGTERM)
    assert stop.grace_s < patient
    with pytest.raises(Terminated) as raised:
        stop.check(InFlight())
    assert raised.value.exit_code == 143


@pytest.mark.parametrize("asking", [True, False])
def test_a_second_signal_or_one_outside_a_sweep_ends_the_run_immediately(asking: bool):
    stop = InterruptState(polled=asking)
    if asking:
        stop.handle(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stop.handle(signal.SIGINT)
    stop.polled = False
    assert ("second Ctrl-C" in str(stop.error())) == asking


def _received_signal() -> None:
    with handle_signals(InterruptState()):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)


def test_a_signal_raises_interrupted_and_restores_the_handlers():
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Terminated):
        _received_signal()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_signals_are_not_handled():
    worked: list[bool] = []

    def work() -> None:
        with handle_signals(InterruptState()):
            worked.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert worked == [True]


def test_a_signal_within_a_finalizer_shows_no_traceback_and_ends_the_run_at_its_next_check(
    monkeypatch: pytest.MonkeyPatch,
):
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)

    class Dropped:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            sum(range(10_000))  # the handler runs before the finalizer ends

    stop = InterruptState()
    with handle_signals(stop):
        Dropped()
        with pytest.raises(Interrupted):
            stop.check(InFlight())
    assert shown == []
