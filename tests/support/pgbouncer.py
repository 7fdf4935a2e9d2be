"""A PgBouncer of a test's own in front of a server of the tests, where its program is installed."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from project.servers import free_port
from tests.support.waiting import eventually

_SETTINGS = """
[databases]
* = host={host} port={server_port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = extra_float_digits,options
"""


@contextmanager
def pgbouncer(directory: Path, mode: str, *, host: str, server_port: object, user: str) -> Iterator[int]:
    """Pool in this mode ("session" or "transaction"); the local port. Skips the test where it is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") or pytest.skip("no pgbouncer here")
    port = free_port()
    settings = directory / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(host=host, server_port=server_port, user=user, port=port, mode=mode))
    as_nobody = ["-u", "nobody"] if getpass.getuser() == "root" else []  # it does not run as root
    with (directory / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen([program, *as_nobody, str(settings)], stdout=log, stderr=log)
    try:
        eventually(lambda: _accepts(port))
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
