"""A local web server for documents: pages of links, and files by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit


class WebServer(ThreadingHTTPServer):
    """`files` by path, such as "/docs/a.txt"; a path that ends in a slash is a page.

    `ranges`: whether it supports range requests. `asked` has (path, range) of each GET.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.ranges = dict(files), ranges
        self.asked: list[tuple[str, str]] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def _answer(self, head: bool) -> None:
        path, wanted = urlsplit(self.path).path, self.headers.get("Range", "")
        if not head:
            self.server.asked.append((path, wanted))
        data, status = self.server.files.get(path), 200
        if data is None:
            self.send_error(404)
            return
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        if part and self.server.ranges:
            data, status = data[int(part[1]) : int(part[2]) + 1], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "text/html" if path.endswith("/") else "text/plain")
        self.end_headers()
        if not head:
            self.wfile.write(data)

    def log_message(self, *given: object) -> None: ...


@contextmanager
def serving(files: Mapping[str, bytes], ranges: bool = True) -> Iterator[WebServer]:
    server = WebServer(files, ranges)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
