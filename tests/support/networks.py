"""A network between a client and a server, on a local port: it can lose all that is sent, as when a host vanishes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class Network:
    """Forwards connections to `target`, a Unix socket or a host and port; a context manager.

    Listens on `address` at `port`, which the system chooses if it is 0.
    """

    def __init__(self, target: Path | tuple[str, int], *, address: str = "127.0.0.1", port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._silent = threading.Event()
        self._is_gone = False
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all connections, the silent ones too."""
        _end(self._listener)
        self._end_connections()

    def lose_connections(self) -> None:
        """From here on pass on nothing of the connections that there are, and close none. New ones are served."""
        with self._lock:
            self._silent.set()
            self._silent = threading.Event()

    def vanish(self) -> None:
        """From here on pass on nothing, of new connections neither, and close none."""
        with self._lock:
            self._silent.set()
            self._is_gone = True

    def come_back(self) -> None:
        """After `vanish`, end what was silent, as a host does that has started again, and serve new connections."""
        if not self._is_gone:
            return
        self._end_connections()
        with self._lock:
            self._silent = threading.Event()
            self._is_gone = False

    def _end_connections(self) -> None:
        with self._lock:
            found, self._sockets = self._sockets, set()
        for each in found:
            _end(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            silent = self._silent
            self._sockets.add(client)
            if self._is_gone:
                return
        try:
            server = _connected(self._target)
        except OSError:
            self._forget(client)
            return
        with self._lock:
            self._sockets.add(server)
        answers = threading.Thread(target=self._forward, args=(server, client, silent), daemon=True)
        answers.start()
        self._forward(client, server, silent)
        answers.join()
        if not silent.is_set():
            self._forget(client, server)

    def _forward(self, source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not silent.is_set():
                    target.sendall(data)
        if not silent.is_set():
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def _forget(self, *ended: socket.socket) -> None:
        with self._lock:
            self._sockets.difference_update(ended)
        for each in ended:
            each.close()


def _connected(target: Path | tuple[str, int]) -> socket.socket:
    if isinstance(target, tuple):
        found = socket.create_connection(target)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(str(target))
    except OSError:
        found.close()
        raise
    return found


def _end(found: socket.socket) -> None:
    with suppress(OSError):
        found.shutdown(socket.SHUT_RDWR)
    found.close()
