"""Calls of an actor that are carried out once, although their answers may be lost on the way.

Where a connection between two living processes breaks, Ray says `ActorUnavailableError`, or repeats the call
by itself: in either case it may have been carried out already. So whoever calls numbers the calls, and the
actor repeats its answer to whoever asks for it again. `ActorUnavailableError` is a `RayActorError` too: who
takes these for a death has to ask through a `ActorClient`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import ray
from ray.exceptions import ActorUnavailableError

T = TypeVar("T")
P = ParamSpec("P")

UNREACHED_S = 30.0
"""An actor that answers nothing for so long is out of reach, whether it lives or not."""
AGAIN_S = 0.1
"""Before a call is repeated; Ray itself takes a second to find out that its actor did not die."""


@dataclass(frozen=True)
class Call:
    """by: a name that no other caller has or had; number: of its calls, made one after the other."""

    by: str
    number: int


class Calls:
    """Those of one caller."""

    def __init__(self) -> None:
        self._by = uuid.uuid4().hex
        self._numbers = count(1)

    def next(self) -> Call:
        return Call(self._by, next(self._numbers))


class Answers:
    """What an actor answered last to each of its callers."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, asyncio.Future[Any]]] = {}

    async def once(self, call: Call, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the call answers, or answered when it came first."""
        last = self._last.get(call.by)
        if last is None or last[0] < call.number:
            last = call.number, asyncio.ensure_future(answer())
            self._last[call.by] = last
        elif last[0] > call.number:
            raise ValueError(f"{call} came late: its caller has gone on, and waits for no answer")
        answered: T = await asyncio.shield(last[1])
        return answered


class Carried:
    """Which of the latest calls were carried out. For calls that nobody waits for, in any order."""

    def __init__(self, most: int = 10_000) -> None:
        self._calls = dict[Call, None]()
        self._most = most

    def first(self, call: Call) -> bool:
        """Whether it comes for the first time."""
        if call in self._calls:
            return False
        self._calls[call] = None
        if len(self._calls) > self._most:
            del self._calls[next(iter(self._calls))]
        return True


class _Answering(Protocol):
    answers: Answers


A = TypeVar("A", bound=_Answering)


def once(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[A, Call, P], Coroutine[Any, Any, T]]:
    """A method of an actor whose callers number their calls, as those through a `ActorClient` are."""

    async def asked(self: A, call: Call, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.answers.once(call, partial(method, self, *args, **kwargs))

    # Not `functools.wraps`: Ray would read the signature of what is wrapped.
    asked.__name__, asked.__doc__ = method.__name__, method.__doc__
    return asked


class ActorClient:
    """One caller's way to an actor: `ask` in an event loop, `get` elsewhere, one call at a time.

    Both raise RayActorError where the actor died, or is out of reach for UNREACHED_S.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._calls = Calls()

    async def ask(self, method: str, *args: Any) -> Any:
        call, until = self._calls.next(), time.monotonic() + UNREACHED_S
        while True:
            try:
                return await getattr(self.actor, method).remote(call, *args)
            except ActorUnavailableError:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(AGAIN_S)

    def get(self, method: str, *args: Any, within_s: float | None = None) -> Any:
        """within_s: for the answer; raises GetTimeoutError then. None: as long as the actor takes for it."""
        call, until = self._calls.next(), time.monotonic() + (within_s or UNREACHED_S)
        while True:
            try:
                return ray.get(getattr(self.actor, method).remote(call, *args), timeout=within_s)
            except ActorUnavailableError:
                if time.monotonic() >= until:
                    raise
            time.sleep(AGAIN_S)
