"""A pooler in transaction mode, as PgBouncer is one, and a hostile one.

It speaks PostgreSQL's protocol on a local port. Each transaction goes to another server connection than the last one,
and each server connection forgets its session after each transaction (`DISCARD ALL`): a client that relies on what it
did to its session before finds it gone, or finds another client's. A client that prepares a statement by name is noted
in `prepared`. With `keeps_statements` the pooler prepares it again in the session that is to execute it, as PgBouncer
does from 1.21 on; otherwise it is gone.
"""

from __future__ import annotations

import itertools
import queue
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_PROTOCOL: Final = 196608
_ENCRYPTION: Final = frozenset({80877103, 80877104})  # requests for TLS and GSSAPI
_CANCEL: Final = 80877102


class _Closed(Exception):
    """The other side is gone."""


class _Wire:
    """Messages of the protocol over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def read(self) -> tuple[bytes, bytes]:
        """The next message: its kind and its body."""
        kind = self.exactly(1)
        return kind, self.exactly(self.length() - 4)

    def length(self) -> int:
        """The next number of four bytes."""
        found: int = struct.unpack("!i", self.exactly(4))[0]
        return found

    def exactly(self, size: int) -> bytes:
        """The next so many bytes."""
        found = bytearray()
        while len(found) < size:
            some = self.socket.recv(size - len(found))
            if not some:
                raise _Closed
            found += some
        return bytes(found)

    def write(self, kind: bytes, body: bytes) -> None:
        """Send one message."""
        self.socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)


class _Server(_Wire):
    """One connection to the server, ready for a transaction."""

    def __init__(self, path: Path, user: str, database: str, options: str) -> None:
        super().__init__(socket.socket(socket.AF_UNIX))
        self.socket.connect(str(path))
        given = {"user": user, "database": database, "options": options}
        body = struct.pack("!i", _PROTOCOL) + b"".join(f"{k}\0{v}\0".encode() for k, v in given.items()) + b"\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self.greeting = self._until_ready()

    def prepare(self, body: bytes) -> None:
        """Prepare a statement of another session."""
        self.write(b"P", body)
        self.write(b"H", b"")  # a Flush: the answer comes before a Sync
        assert self.read()[0] == b"1"

    def forget(self) -> None:
        """Undo all settings of the session."""
        self.write(b"Q", b"DISCARD ALL\0")
        self._until_ready()

    def _until_ready(self) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        while True:
            kind, body = self.read()
            if kind == b"E":
                raise AssertionError(f"the server refused the pooler: {body!r}")
            if kind == b"Z":
                return found
            found.append((kind, body))


class Pooler:
    """`size` connections to the database behind the socket `path`, shared by all who connect to `port`."""

    def __init__(
        self, path: Path, *, user: str, database: str, size: int = 4, options: str = "", keeps_statements: bool = False
    ) -> None:
        self.keeps_statements = keeps_statements
        self._statements: dict[bytes, bytes] = {}  # by name: clients with one name mean one statement
        self._servers: queue.Queue[_Server] = queue.Queue()  # first in, first out: the next one is another one
        for _ in range(size):
            self._servers.put(_Server(path, user, database, options))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.transactions = 0
        self.prepared: list[str] = []
        self._keys = itertools.count(1 << 30)
        self.faults: list[BaseException] = []
        self._clients: list[socket.socket] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, name="pooler", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        for client in self._clients:
            client.close()
        while not self._servers.empty():
            self._servers.get().socket.close()

    def _listen(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(_Wire(client),), name="pooled", daemon=True).start()

    def _serve(self, client: _Wire) -> None:
        try:
            if self._greet(client):
                while True:
                    self._transact(client)
        except (_Closed, OSError):
            pass
        except BaseException as error:  # the test looks at them
            self.faults.append(error)
        finally:
            client.socket.close()

    def _greet(self, client: _Wire) -> bool:
        """Let a client in, as a server would; whether it stays."""
        while True:
            body = client.exactly(client.length() - 4)
            [code] = struct.unpack("!i", body[:4])
            if code == _CANCEL:
                return False
            if code not in _ENCRYPTION:
                break
            client.socket.sendall(b"N")
        server = self._servers.get()
        greeting = server.greeting
        self._servers.put(server)
        for kind, body in greeting:
            # a key of its own: no client has one server connection
            client.write(kind, struct.pack("!ii", next(self._keys), 0) if kind == b"K" else body)
        client.write(b"Z", b"I")
        return True

    def _transact(self, client: _Wire) -> None:
        """Carry one transaction, from the client's first message to the moment when the server is idle again."""
        message = client.read()
        if message[0] == b"X":
            raise _Closed
        server = self._servers.get()
        is_clean = False
        try:
            while not self._is_over(client, server, message):
                message = client.read()
            server.forget()
            is_clean = True
        finally:
            if is_clean:
                with self._lock:
                    self.transactions += 1
                self._servers.put(server)
            else:  # the client left in the middle of it: roll back
                with suppress(OSError, _Closed, AssertionError):
                    server.write(b"Q", b"ROLLBACK\0")
                    server._until_ready()
                    server.forget()
                    self._servers.put(server)

    def _is_over(self, client: _Wire, server: _Server, message: tuple[bytes, bytes]) -> bool:
        """Carry one message to the server, and what it answers back; whether the transaction has ended."""
        kind, body = message
        if kind == b"P" and (name := body.partition(b"\0")[0]):
            self.prepared.append(name.decode())
            self._statements[name] = body
        if kind == b"B" and self.keeps_statements and (again := self._statements.get(body.split(b"\0", 2)[1])):
            server.prepare(again)
        server.write(kind, body)
        if kind not in (b"Q", b"S", b"F"):  # the server answers when it is asked to, by a Sync
            return False
        while True:
            answer = server.read()
            client.write(*answer)
            if answer[0] == b"Z":
                return answer[1] == b"I"
