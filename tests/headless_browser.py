"""Headless Chromium through its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOW_TO_INSTALL = "needs Chromium: apt-get install chromium"


class BrowserPage:
    """One page.

    `complaints` has the messages of its console and log; `requests` has the URLs that it requested, by
    number, without those its policy blocked.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.requests: dict[str, str] = {}
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(self._waiting[number], 120)

    async def open(self, url: str) -> None:
        self._loaded.clear()
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), 120)

    async def run(self, script: str) -> Any:
        """The value of an expression, converted from JSON."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    async def look(self, width: int, height: int, dark: bool = False, media: str = "screen") -> None:
        """Set the size and the colour scheme of the page."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    async def press(self, key: str) -> None:
        for type_ in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=type_, key=key, code=key, windowsVirtualKeyCode=_KEYS[key]
            )

    async def picture(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    async def close(self) -> None:
        self._reading.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                waiting = self._waiting.pop(told["id"])
                if "error" in told:
                    waiting.set_exception(AssertionError(told["error"]))
                else:
                    waiting.set_result(told["result"])
                continue
            params = told["params"]
            match told["method"]:
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Network.requestWillBeSent":
                    self.requests[params["requestId"]] = params["request"]["url"]
                case "Network.loadingFailed" if params.get("blockedReason") == "csp":
                    del self.requests[params["requestId"]]
                case (
                    "Runtime.exceptionThrown"
                    | "Runtime.consoleAPICalled"
                    | "Log.entryAdded"
                    | "Audits.issueAdded"
                ):
                    self.complaints.append(str(params))


_KEYS = {"Tab": 9, "ArrowDown": 40, "ArrowUp": 38}


@asynccontextmanager
async def browser_page(profile: Path) -> AsyncIterator[BrowserPage]:
    """`profile` is a folder for the browser."""
    assert CHROMIUM
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    quiet = [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
    ]
    place = [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *options, *quiet, *place, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        port = await asyncio.wait_for(_port(profile / "DevToolsActivePort"), 120)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                targets = await reply.json()
            url = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                page = BrowserPage(socket)
                yield page
                await page.close()
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path) -> int:
    while not (file.exists() and "\n" in (text := file.read_text())):
        await asyncio.sleep(0.05)
    return int(text.split("\n")[0])
