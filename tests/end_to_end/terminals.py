"""Run the program on a pseudo-terminal, as a user at a terminal would."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from types import TracebackType

WAIT_S = 60.0

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from graphrag_ray.cli.command_line import main
main(sys.argv[1:])
"""
"""Ctrl-C is heard also where a script started the tests in the background, which lets them ignore it."""


class Terminal:
    """A command on a pseudo-terminal. `shown` is everything it printed, without colours."""

    def __init__(self, *arguments: object) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(theirs)
        self._raw = b""

    @property
    def shown(self) -> str:
        text = self._raw.decode("utf-8", "replace").replace("\r\n", "\n")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until it has printed a text `times` times."""
        until = time.monotonic() + WAIT_S
        while self.shown.count(text) < times:
            assert time.monotonic() < until, self.shown
            assert self._read(0.1), f"it ended:\n{self.shown}"

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Send Ctrl-C as the terminal driver does, a moment after the last output, because `input` misses a
        signal that arrives while it handles a key."""
        time.sleep(0.3)
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for the end. Returns the rest of the output and the exit code."""
        until = time.monotonic() + WAIT_S
        while self._read(0.1):
            assert time.monotonic() < until, self.shown
        return self._process.wait(WAIT_S)

    def _read(self, seconds: float) -> bool:
        """Returns False at the end of the output."""
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return True
        try:
            more = os.read(self._ours, 65536)
        except OSError:  # The last process with this terminal has ended.
            return False
        self._raw += more
        return bool(more)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)
