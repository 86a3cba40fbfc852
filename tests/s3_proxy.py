"""A proxy for an S3 server that counts requests and injects faults."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

STATUS = {"500": "InternalError", "503": "SlowDown", "409": "OperationAborted"}
"""Faults that are error responses: the error code in the body, by HTTP status."""
FAULTS = [*STATUS, "hang up", "lose the response", "truncate the response"]


@dataclass(frozen=True)
class Seen:
    """A request.

    Attributes:
        kind: The S3 operation, such as `GET list` or `PUT part`.
        fault: The injected fault, or "".
    """

    method: str
    kind: str
    path: str
    fault: str


class S3Proxy:
    """A context manager that runs a proxy for `target`.

    Attributes:
        script: Pairs of method and fault. If the first pair has the method of a request, it is
            removed and its fault is injected.
        choose: Returns the fault for a request that the script does not cover, or "".
        arrived: Called with each request before its body is read.
        sent: Bytes of request bodies, by kind.
        answered: Bytes of response bodies, by kind.
    """

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("http://")
        self.script: list[tuple[str, str]] = []
        self.choose: Callable[[Seen], str] = lambda seen: ""
        self.arrived: Callable[[Seen], None] = lambda seen: None
        self.seen: list[Seen] = []
        self.sent, self.answered = Counter[str](), Counter[str]()
        self.in_flight = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> S3Proxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def faults(self, method: str) -> list[str]:
        """Return the fault of each request with a method, in order."""
        return [s.fault for s in self.seen if s.method == method]

    def counts(self) -> Counter[str]:
        """Count requests by kind."""
        return Counter(s.kind for s in self.seen)

    def fail_at_random(self, seed: int, share: float, faults: tuple[str, ...]) -> None:
        """Inject one of the faults into this share of all further requests."""
        rng = random.Random(seed)
        self.choose = lambda seen: rng.choice(faults) if rng.random() < share else ""

    def wait_until_idle(self) -> None:
        """Wait until no request is in flight."""
        end = time.monotonic() + 30
        while self.in_flight and time.monotonic() < end:
            time.sleep(0.01)

    @contextmanager
    def track(self, method: str, url: str) -> Iterator[None]:
        with self._lock:
            self.in_flight += 1
        try:
            self.arrived(Seen(method, _kind(method, url), url, ""))
            yield
        finally:
            with self._lock:
                self.in_flight -= 1

    def record_request(self, method: str, url: str, n_bytes: int) -> str:
        """Record a request and the size of its body. Returns its fault."""
        with self._lock:
            self.sent[_kind(method, url)] += n_bytes
            if self.script and self.script[0][0] == method:
                fault = self.script.pop(0)[1]
            else:
                fault = self.choose(Seen(method, _kind(method, url), url, ""))
            self.seen.append(Seen(method, _kind(method, url), url, fault))
        return fault

    def record_response(self, method: str, url: str, n_bytes: int) -> None:
        with self._lock:
            self.answered[_kind(method, url)] += n_bytes

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(_Handler):
            def handle_request(self) -> None:
                with proxy.track(self.command, self.path):
                    self.forward(proxy)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_request

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Maximum number of connections that wait to be accepted. With the default of 5, some connections are
    delayed by a second when many are opened at once.
    """


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def forward(self, proxy: S3Proxy) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self._body(length)
        if len(body) < length:
            # The client is gone. Forward the partial body and close the connection.
            with closing(self._request(proxy, body)):
                return self._hang_up()
        fault = proxy.record_request(self.command, self.path, length)
        if fault in STATUS:
            return self._respond(int(fault), [], b"<Error><Code>%s</Code></Error>" % STATUS[fault].encode())
        if fault == "hang up":
            return self._hang_up()
        connection = self._request(proxy, body)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if fault == "lose the response":
            return self._hang_up()
        cut = len(data) // 2 if fault == "truncate the response" else len(data)
        proxy.record_response(self.command, self.path, cut)
        return self._respond(response.status, response.getheaders(), data, cut)

    def _body(self, length: int) -> bytes:
        pieces, remaining = [], length
        with suppress(ConnectionError):
            while remaining and (piece := self.rfile.read1(min(remaining, 1 << 20))):
                pieces.append(piece)
                remaining -= len(piece)
        return b"".join(pieces)

    def _request(self, proxy: S3Proxy, body: bytes) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(proxy.target, timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        return connection

    def _respond(
        self, status: int, headers: list[tuple[str, str]], data: bytes, cut: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = next((v for n, v in headers if n.lower() == "content-length"), str(len(data)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None and cut < len(data):
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass


def _kind(method: str, url: str) -> str:
    query = parse_qs(urlsplit(url).query, keep_blank_values=True)
    for name, kind in (("list-type", "list"), ("partNumber", "part"), ("uploads", "begin parts")):
        if name in query:
            return f"{method} {kind}"
    return f"{method} whole parts" if "uploadId" in query else method
