"""Callbacks for the progress of a run."""

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
    """Ignores all events. Subclasses, such as the command line's progress display, override some methods."""

    def __enter__(self) -> Self:
        """Called when the run begins."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Called when the run has ended."""

    @contextmanager
    def waiting(self, description: str) -> Iterator[None]:
        """Wraps a slow operation before the first step."""
        yield

    def run_started(self, settings: Settings, stage: str = "extract") -> None:
        """Called when the settings are valid and the run starts with this stage."""

    def message(self, message: str) -> None:
        """Called with a sentence for the user."""

    def step_started(self, name: str) -> None: ...

    def step_ended(self, name: str, seconds: float, counts: Mapping[str, Any], reused: bool) -> None:
        """Called after a step. `reused` means that its result comes from the previous snapshot."""

    def progress(self, p: SweepProgress) -> None:
        """Called a few times a second during a sweep."""


def is_notebook() -> bool:
    return "ipykernel" in sys.modules and "IPython" in sys.modules


def shows_progress() -> bool:
    """Whether a progress display is visible: in a notebook, or if standard error is a terminal."""
    isatty = getattr(sys.stderr, "isatty", None)  # stderr may be any replacement
    return is_notebook() or (isatty is not None and isatty())
