"""Servers on loopback ports for tests: the project under ASGI, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from django.core.asgi import get_asgi_application


@contextmanager
def asgi_server() -> Iterator[str]:
    """The address of a server that runs within the block."""
    config = uvicorn.Config(
        get_asgi_application(),
        host="127.0.0.1",
        port=0,
        lifespan="off",
        log_level="error",
        timeout_graceful_shutdown=5,
    )
    begun = threading.Event()

    class Announcing(uvicorn.Server):
        """Says when it listens."""

        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            begun.set()

    server = Announcing(config)
    thread = threading.Thread(target=server.run, name="asgi-server")
    thread.start()
    try:
        assert begun.wait(120), "the server does not begin to listen"
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive(), "the server does not stop"
