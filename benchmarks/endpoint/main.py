"""Run the server process on the loopback address: print its base URL, serve until a signal arrives."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import IO

import orjson
from aiohttp import web

from . import tokens
from .ledger import Ledger
from .options import Options, read
from .server import Server

HOST = "127.0.0.1"
BACKLOG = 4096
FLUSH_S = 1.0


def main(arguments: list[str]) -> int:
    args, options = read(arguments)
    _allow_many_connections()
    tokens.count("", options.count)  # Loads the vocabulary.
    with ExitStack() as stack:
        log = stack.enter_context(open(args.log, "wb", buffering=1 << 20)) if args.log else None
        with asyncio.Runner() as runner:
            runner.run(_serve(args.port, options, log))
    return 0


async def _serve(port: int, options: Options, log: IO[bytes] | None) -> None:
    loop = asyncio.get_running_loop()
    ledger = Ledger(loop.time, log, asdict(options))
    # A disconnected client frees its slot immediately, as in an inference server.
    runner = web.AppRunner(
        Server(options, ledger, loop).app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    try:
        await web.TCPSite(runner, HOST, port, backlog=BACKLOG).start()
        gc.freeze()
        print(f"http://{HOST}:{runner.addresses[0][1]}/v1", flush=True)
        while not stop.is_set():
            ledger.flush()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), FLUSH_S)
    finally:
        await runner.cleanup()
        ledger.flush()
    print(orjson.dumps(ledger.statistics(), option=orjson.OPT_INDENT_2).decode(), file=sys.stderr)


def _allow_many_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
