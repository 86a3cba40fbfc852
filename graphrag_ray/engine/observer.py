"""Who is told how a run goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from graphrag_ray.base.index_settings import Settings
    from graphrag_ray.engine.executor import SweepProgress


class Observer:
    """Says nothing. Subclasses replace what they want to be told; the command line has one for people."""

    def __enter__(self) -> Self:
        """The run begins."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It has ended."""

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Around what takes seconds before the first step."""
        yield

    def checked(self, settings: Settings, stage: str = "extract") -> None:
        """Settings are in order; the run starts, with this stage."""

    def note(self, message: str) -> None:
        """A sentence for people."""

    def step_started(self, name: str) -> None: ...

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        """reused: its result was taken from the snapshot before."""

    def progress(self, p: SweepProgress) -> None:
        """Called a few times a second during a sweep."""


def in_notebook() -> bool:
    return "ipykernel" in sys.modules and "IPython" in sys.modules


def is_watched() -> bool:
    """Whether somebody sees what moves: a notebook, or standard error on a terminal."""
    isatty = getattr(sys.stderr, "isatty", None)  # another program may have put a writer of its own there
    return in_notebook() or (isatty is not None and isatty())
