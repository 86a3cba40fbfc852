"""A proxy in front of an S3 server, that counts what passes and lets it go wrong as it is told."""

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
"""Faults that are answers, with the code in their body."""
FAULTS = [*STATUS, "hang up", "lose the answer", "cut the answer short"]


@dataclass(frozen=True)
class Seen:
    """method: with what an S3 server takes it for (`GET list`, `PUT part`); path; fault: "" for none."""

    method: str
    kind: str
    path: str
    fault: str


class S3Proxy:
    """In front of `target`, while the block lasts.

    script   (method, fault): the next request of that method meets that fault, once, in this order
    choose   otherwise: called with each request, returns a fault or ""
    arrived  called with each request before its body is taken
    sent     bytes of the bodies of requests, by kind;  answered: of those of answers
    """

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("http://")
        self.script: list[tuple[str, str]] = []
        self.choose: Callable[[Seen], str] = lambda seen: ""
        self.arrived: Callable[[Seen], None] = lambda seen: None
        self.seen: list[Seen] = []
        self.sent, self.answered = Counter[str](), Counter[str]()
        self.under_way = 0
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
        """What each request of a method met."""
        return [s.fault for s in self.seen if s.method == method]

    def counts(self) -> Counter[str]:
        """Requests by kind."""
        return Counter(s.kind for s in self.seen)

    def fail_at_random(self, seed: int, share: float, faults: tuple[str, ...]) -> None:
        """From now on this share of requests meets one of the faults."""
        rng = random.Random(seed)
        self.choose = lambda seen: rng.choice(faults) if rng.random() < share else ""

    def wait_until_idle(self) -> None:
        """Until nothing is passed on any more."""
        end = time.monotonic() + 30
        while self.under_way and time.monotonic() < end:
            time.sleep(0.01)

    @contextmanager
    def passing(self, method: str, url: str) -> Iterator[None]:
        with self._lock:
            self.under_way += 1
        try:
            self.arrived(Seen(method, _kind(method, url), url, ""))
            yield
        finally:
            with self._lock:
                self.under_way -= 1

    def take(self, method: str, url: str, n_bytes: int) -> str:
        """Record a request with a body of this many bytes. Returns its fault."""
        with self._lock:
            self.sent[_kind(method, url)] += n_bytes
            if self.script and self.script[0][0] == method:
                fault = self.script.pop(0)[1]
            else:
                fault = self.choose(Seen(method, _kind(method, url), url, ""))
            self.seen.append(Seen(method, _kind(method, url), url, fault))
        return fault

    def note_answer(self, method: str, url: str, n_bytes: int) -> None:
        with self._lock:
            self.answered[_kind(method, url)] += n_bytes

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(_Handler):
            def handle_request(self) -> None:
                with proxy.passing(self.command, self.path):
                    self.pass_on(proxy)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_request

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Of connections that wait to be accepted. With the usual 5 some of many at once wait for a second."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def pass_on(self, proxy: S3Proxy) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self._body(length)
        if len(body) < length:
            # The client is gone: the server sees as much, and that nobody is there any more.
            with closing(self._request(proxy, body)):
                return self._hang_up()
        fault = proxy.take(self.command, self.path, length)
        if fault in STATUS:
            return self._answer(int(fault), [], b"<Error><Code>%s</Code></Error>" % STATUS[fault].encode())
        if fault == "hang up":
            return self._hang_up()
        connection = self._request(proxy, body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault == "lose the answer":
            return self._hang_up()
        cut = len(data) // 2 if fault == "cut the answer short" else len(data)
        proxy.note_answer(self.command, self.path, cut)
        return self._answer(answer.status, answer.getheaders(), data, cut)

    def _body(self, length: int) -> bytes:
        pieces, left = [], length
        with suppress(ConnectionError):
            while left and (piece := self.rfile.read1(min(left, 1 << 20))):
                pieces.append(piece)
                left -= len(piece)
        return b"".join(pieces)

    def _request(self, proxy: S3Proxy, body: bytes) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(proxy.target, timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        return connection

    def _answer(
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
