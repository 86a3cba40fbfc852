"""The way to every model: a request goes in, its reply comes out, accounted for. It knows no GraphRAG.

ask ─► lane of the model ─► line ─► limiter ─► client ─► endpoint
                             (embeddings are packed first; the offline engine is called directly)
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor

from graphrag_ray.base.errors import FatalCallError, NoWay
from graphrag_ray.base.index_settings import Model
from graphrag_ray.base.messages import ChatReply, EmbeddingReply, EmbeddingRequest, Listener, Reply, Request
from graphrag_ray.base.providers import PROVIDERS, Client, LocalProvider
from graphrag_ray.llm.accounting import CallRecord, InFlight
from graphrag_ray.llm.limiter import Limiter
from graphrag_ray.llm.model_client import Called, Lane, Runtime
from graphrag_ray.llm.offline_client import LocalLane, Processes
from graphrag_ray.llm.packing import Packer
from graphrag_ray.llm.request_sizes import text_size

PACK_HOLD_S = 0.01


class Gateway:
    """Asks models. Belongs to one event loop; `close` it when done.

    models          by logical name; a name that is not here is answered offline
    limiter         of all models with endpoints, shared with whoever else calls them
    clients         for each model with endpoints: of `RemoteProvider.connect`
    local           the providers of models that are answered in this process; of others, the offline engine
    on_call         told of every logical call when it has ended
    in_flight       kept up to date with what is sent and not yet answered
    hedge           send a second request for a call slower than nearly all of its stage
    at_the_end      whether nothing is left to ask beside what is in flight
    attempts_before that somebody has made of each call before
    aside           where offline models answer; None: in the event loop
    pool            of processes where they answer once these are up
    dropped_for_s   an endpoint that refused us as a whole is tried again then
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        limiter: Limiter,
        clients: Mapping[str, Sequence[Client | FatalCallError]],
        *,
        local: Mapping[str, LocalProvider] | None = None,
        max_attempts: int,
        on_call: Callable[[CallRecord], None],
        in_flight: InFlight | None = None,
        rng: random.Random,
        hedge: bool = False,
        at_the_end: Callable[[], bool] = lambda: False,
        attempts_before: int = 0,
        aside: Executor | None = None,
        pool: Processes | None = None,
        dropped_for_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        sent = in_flight or InFlight()
        runtime = Runtime(
            limiter,
            on_call,
            sent,
            max_attempts,
            rng,
            clock,
            sleep,
            hedge,
            at_the_end,
            attempts_before,
            dropped_for_s,
        )
        self._lanes = {
            name: Lane(name, model, clients[name], runtime)
            for name, model in models.items()
            if not model.is_local
        }
        self._packers = {name: _packer(lane) for name, lane in self._lanes.items()}
        self._local = dict(local or {})
        self._local_lanes: dict[str, LocalLane] = {}
        self._local_runtime = (on_call, clock, aside, pool)

    async def ask(self, request: Request, stage: str) -> Reply:
        """The reply to one request; stage: for the accounts.

        Raises PermanentCallError (this request never succeeds), TransientCallError with `attempts`
        (it did not, this time) or FatalCallError (no request will succeed).
        """
        return (await self.answer(request, stage)).reply

    async def answer(self, request: Request, stage: str, listener: Listener | None = None) -> Called[Reply]:
        """`ask`, with the endpoint, the latency and the number of attempts.

        listener: hears a chat reply while it is written
        """
        called: Called[ChatReply] | Called[EmbeddingReply]
        name = request.call.model
        lane = self._lanes.get(name)
        if lane and lane.model.unknown:
            raise NoWay(f"this machine does not know where the model {lane.model.model!r} is")
        if isinstance(request, EmbeddingRequest):
            if name not in self._packers:
                self._packers[name] = Packer(self._local_lane(name).embed, len, texts=1024, hold_s=0.0)
            called = await self._packers[name].add(request, stage)
        elif lane:
            called = await lane.chat(request, stage, listener)
        else:
            called = await self._local_lane(name).chat(request, stage, listener)
        return Called(called.reply, called.endpoint, called.latency_s, called.attempts)

    async def close(self) -> None:
        for packer in self._packers.values():
            await packer.finish()
        for lane in self._lanes.values():
            await lane.close()

    def _local_lane(self, name: str) -> LocalLane:
        if name not in self._local_lanes:
            provider = self._local.get(name) or PROVIDERS["offline"]
            assert isinstance(provider, LocalProvider)
            self._local_lanes[name] = LocalLane(provider, *self._local_runtime)
        return self._local_lanes[name]


def _packer(lane: Lane) -> Packer:
    model = lane.model
    limits = [e.tokens_per_minute for e in model.endpoints if e.tokens_per_minute is not None]
    return Packer(
        lane.embed,
        lambda text: text_size(text, model),
        texts=model.embedding_batch,
        hold_s=PACK_HOLD_S,
        max_tokens=min(limits, default=float("inf")),
    )
