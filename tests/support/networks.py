"""A network between a client and a server, on a local port: it can lose all that is sent, as when a host vanishes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class Network:
    """Forwards connections on 127.0.0.1 to the Unix socket at `path`; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._silent = threading.Event()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all connections, the silent ones too."""
        with self._lock:
            found = [self._listener, *self._sockets]
        for each in found:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def lose_connections(self) -> None:
        """From here on pass on nothing of the connections that there are, and close none. New ones are served."""
        with self._lock:
            self._silent.set()
            self._silent = threading.Event()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._path))
                with self._lock:
                    self._sockets += [client, server]
                    silent = self._silent
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(*ends, silent), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not silent.is_set():
                    target.sendall(data)
            if not silent.is_set():
                target.shutdown(socket.SHUT_WR)
