"""A real server on loopback that sends arbitrary bytes.

with HostileServer(lambda body: [b"HTTP/1.1 200 OK\\r\\n\\r\\n", *endless(b"x")]) as server: ...
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

Respond: TypeAlias = Callable[[dict[str, Any]], Iterable[bytes]]


class HostileServer:
    """`respond` yields what is written in response to a request body, piece by piece, until the client
    disconnects. `sent_bytes` counts written bytes, and `bodies` has the bodies of requests."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.sent_bytes = 0
        self.bodies: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                body = json.loads(_request_body(connection))
                self.bodies.append(body)
                for piece in self._respond(body):
                    connection.sendall(piece)
                    self.sent_bytes += len(piece)
        except (OSError, ValueError):
            return


def _request_body(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line
    )
    while len(body) < length:
        body += connection.recv(1 << 16)
    return body


def answer(body: bytes | dict[str, Any], status: str = "200 OK", **headers: str) -> list[bytes]:
    """A complete response."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return [f"HTTP/1.1 {status}\r\n{head}\r\n".encode(), content]


def start_response(content_type: str = "application/json", **headers: str) -> bytes:
    """The head of a response that ends with the connection."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n{more}\r\n".encode()


def endless(piece: bytes, size: int = 1 << 16) -> Iterator[bytes]:
    many = piece * max(1, size // len(piece))
    while True:
        yield many


def trickle(piece: bytes, every_s: float = 0.05) -> Iterator[bytes]:
    while True:
        yield piece
        time.sleep(every_s)
