"""What the client and the server say to each other: requests with file descriptors, and one number as the answer.

Must not import what a command would not: the server is what every command begins with.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Final, NamedTuple

_LENGTH: Final = struct.Struct("!I")
_NUMBER: Final = struct.Struct("!q")
_MOST_DESCRIPTORS: Final = 32


class Request(NamedTuple):
    """A command to run, as `subprocess.Popen` is told of it; or one to prepare for.

    `numbers` are the descriptors of the command: what is sent along is called so there.
    """

    prepare: bool
    arguments: list[str]  # of the interpreter: `manage.py migrate`, `-m django migrate`, `-c code`
    environment: dict[str, str]
    directory: str
    numbers: list[int]
    new_session: bool


def send(connection: socket.socket, request: Request, descriptors: list[int]) -> None:
    text = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(text))], descriptors)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Request, list[int]] | None:
    """The next request with its descriptors; None when the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size or (text := _read(connection, _LENGTH.unpack(head)[0])) is None:
        return None
    return Request(*json.loads(text)), descriptors


def answer(connection: socket.socket, number: int) -> None:
    connection.sendall(_NUMBER.pack(number))


def answered(connection: socket.socket) -> int | None:
    """The answer; None when the other side is gone."""
    data = _read(connection, _NUMBER.size)
    return None if data is None else int(_NUMBER.unpack(data)[0])


def _read(connection: socket.socket, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        if not (chunk := connection.recv(length - len(data))):
            return None
        data += chunk
    return data
