"""The API: a server that notes each request, and how many of a tenant it answers at once."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass(slots=True)
class Api:
    """What the server has seen. `busy` is the seconds that it takes for a request.

    `on_request` is called with the number of each request before it is answered.

    A caller that was killed is counted until its request is answered, or its run calls again: the slot is the run's.
    """

    busy: float
    on_request: Callable[[int], None]
    arrivals: list[tuple[float, str]] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)
    _open: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def called(self, tenant: str, run_id: str) -> Iterator[None]:
        """Note a request for as long as it is answered."""
        with self._lock:
            self.arrivals.append((time.time(), tenant))
            number = len(self.arrivals)
            self._open[tenant][run_id] += 1
            self.most[tenant] = max(self.most[tenant], len(self._open[tenant]))
        try:
            self.on_request(number)
            time.sleep(self.busy)
            yield
        finally:
            with self._lock:
                self._open[tenant][run_id] -= 1
                self._open[tenant] += Counter()  # without those that are 0

    def most_in(self, seconds: float) -> int:
        """Return the most requests that have arrived within so many seconds."""
        times, first, most = [at for at, _ in self.arrivals], 0, 0
        for last, at in enumerate(times):
            while times[first] <= at - seconds:
                first += 1
            most = max(most, last - first + 1)
        return most


@contextmanager
def served(api: Api) -> Iterator[str]:
    """Serve the API on a free port; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tenant, run_id = map(unquote, self.path.strip("/").split("/"))
            with api.called(tenant, run_id):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Not into the output."""

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):  # the caller was killed
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
