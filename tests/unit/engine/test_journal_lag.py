"""The journal lag: the age of the oldest row that is not journalled."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from graphrag_ray.engine.model_access import Gate, JournalGuard
from graphrag_ray.llm.limiter import LocalLimiter
from graphrag_ray.store.files import Store
from graphrag_ray.store.journal import JournalWriter
from graphrag_ray.store.journal_rows import JournalRow


def test_the_lag_grows_while_a_reply_is_not_journalled_and_is_zero_otherwise(tmp_path: Path):
    async def look() -> tuple[float, float, float]:
        writer = JournalWriter(Store(str(tmp_path)), "extract", "w")
        keeper = JournalGuard(writer, Gate(LocalLimiter({}, 1)))
        before = keeper.lag_s
        writer.append(JournalRow("a" * 64, 0, 0, "", "done", 0.0, "extract"))
        time.sleep(0.02)
        waiting = keeper.lag_s
        await keeper.flush()
        return before, waiting, keeper.lag_s

    before, waiting, after = asyncio.run(look())
    assert before == after == 0.0 and waiting >= 0.02
