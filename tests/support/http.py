"""Requests to servers of this machine, over plain HTTP."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Final

import httpx

# Each function of httpx makes a client, and each client reads the certificates of all authorities: 25 ms of CPU, ten
# times a request's. A test that asks until a server answers would take the CPU from that server.
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
PATIENCE: Final = 60.0  # seconds

get = partial(httpx.get, verify=_NO_AUTHORITIES, timeout=PATIENCE)
head = partial(httpx.head, verify=_NO_AUTHORITIES, timeout=PATIENCE)
request = partial(httpx.request, verify=_NO_AUTHORITIES, timeout=PATIENCE)
