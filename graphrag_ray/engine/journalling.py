"""Journalling what is answered, and asking only as long as that works."""

from __future__ import annotations

import asyncio
import time

from graphrag_ray.base.errors import StoreError
from graphrag_ray.engine.gateways import Gate
from graphrag_ray.store.journal import JournalWriter

LATE_S = 2.0
"""A flush that takes longer holds up asking: what cannot be journalled shall not be paid for."""


class Keeper:
    """Writes a sweep's journal, and holds up what is asked while the storage does not take it.

    The store tries a write again for some 15 seconds. In that time calls in flight come back, and no others
    are sent; after it the sweep ends with the storage's error.
    """

    def __init__(self, writer: JournalWriter, gate: Gate) -> None:
        self._writer, self._gate = writer, gate
        self._kept_at = time.monotonic()

    @property
    def lag_s(self) -> float:
        """For how long there has been something that is not journalled; 0 where all is."""
        return time.monotonic() - self._kept_at if self._writer.pending else 0.0

    async def flush(self) -> None:
        """Journal what is pending. Raises StoreError: it stays pending, and nothing more is asked."""
        late = asyncio.get_running_loop().call_later(LATE_S, self._gate.hold)
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._writer.flush)
        except StoreError:
            self._gate.hold()
            raise
        finally:
            late.cancel()
        self._kept_at = began
        self._gate.go_on()

    async def close(self) -> None:
        """Journal what is pending at the end of a sweep. Raises StoreError, saying what is lost."""
        try:
            await self.flush()
        except StoreError as e:
            rows, seconds = self._writer.pending, time.monotonic() - self._kept_at
            if not rows:
                raise
            raise StoreError(
                f"{e}. What was answered in the last {seconds:.0f} s ({rows:,} rows of the journal) could "
                "not be kept, and is asked again then"
            ) from e
