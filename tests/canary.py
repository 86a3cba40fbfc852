"""A server that must never be contacted: it records what it receives."""

from __future__ import annotations

import socket
import threading
from types import TracebackType


class Canary:
    """`heard` has up to 64 kB of what each connection sent, which is answered with an HTTP error."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Canary:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                try:
                    self.heard.append(connection.recv(1 << 16))
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                except OSError:
                    self.heard.append(b"")
