"""The service in this process behind real HTTP without Ray, and as the command that runs it on Ray."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx2 as httpx
import uvicorn
from pydantic import SecretStr

from graphrag_ray.service.answering import Service
from graphrag_ray.service.app import create_app
from graphrag_ray.service.service_options import ServiceOptions

WITHIN_S = 180
TOKEN = "token-of-clients-7f3a"
KEY = "key-of-the-model-91bc"


class Served:
    """`url` of the service, a `client` that sends the token, and the `service` object."""

    def __init__(self, token: str | None = None, **options: Any) -> None:
        app = create_app(ServiceOptions(**options), SecretStr(token) if token else None)
        self.app, self.service = app, cast(Service, app.state.service)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started or not self._thread.is_alive())
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=WITHIN_S)

    def ask(self, question: str, **more: Any) -> httpx.Response:
        return self.client.post("/query", json={"question": question, **more})

    def stream(self, question: str, **more: Any) -> Iterator[tuple[str, Any]]:
        """Name and data of each event."""
        with self.client.stream("POST", "/query", json={"question": question, "stream": True, **more}) as got:
            assert got.status_code == 200, got.read()
            yield from events(got)

    def measured(self, name: str, of: str = "service") -> dict[str, float]:
        """The samples of a metric by label."""
        lines = self.client.get("/metrics").text.splitlines()
        full = f"graphrag_ray_{of}_{name}"
        found = (line.rpartition(" ") for line in lines if line.startswith((full + "{", full + " ")))
        return {labels.removeprefix(full): float(value) for labels, _, value in found}

    def close(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()


class Running:
    """`graphrag-ray serve` as a process, from its first output to its end.

    `environment` replaces that of this process with the token and the key of the model.
    """

    def __init__(
        self, root: Path, *options: str, environment: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        line = [sys.executable, "-m", "graphrag_ray", "serve", "--root", str(root), "--port", str(port)]
        given = {"OPENAI_API_KEY": KEY, "GRAPHRAG_RAY_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            [*line, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**(os.environ if environment is None else environment), **given},
        )
        self.said: list[str] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        try:
            until(lambda: "Press Ctrl-C to stop" in "".join(self.said) or self.process.poll() is not None)
            found = re.search(r" at (http://\S+)", "".join(self.said))
            assert found, "".join(self.said)
        except BaseException:
            self.close()
            raise
        self.url = found.group(1)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=WITHIN_S)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.said += iter(self.process.stdout.readline, "")

    def ask(self, question: str, **more: Any) -> httpx.Response:
        return self.client.post("/query", json={"question": question, **more})

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WITHIN_S)
        self._listening.join()
        return code, "".join(self.said)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def events(got: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in got.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not seen():
        assert time.monotonic() < end, "nothing to see"
        time.sleep(0.02)
