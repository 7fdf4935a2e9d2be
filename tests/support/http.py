"""Requests to servers of this machine, over plain HTTP; servers for tests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import httpx

# Each function of httpx makes a client, and each client reads the certificates of all authorities: 25 ms of CPU, ten
# times a request's. A test that asks until a server answers would take the CPU from that server.
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
PATIENCE: Final = 60.0  # seconds

get = partial(httpx.get, verify=_NO_AUTHORITIES, timeout=PATIENCE)
head = partial(httpx.head, verify=_NO_AUTHORITIES, timeout=PATIENCE)
request = partial(httpx.request, verify=_NO_AUTHORITIES, timeout=PATIENCE)


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve requests on a free port, each in a thread of its own; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
