"""Probes of `manage.py durable_worker` over HTTP: `/livez` and `/readyz`, for Kubernetes and load balancers.

Owns what alive and ready mean, and the small HTTP server in the parent process. The probes report what the parent
already knows: a request reaches neither the database nor a worker, and Redis only now and then. The answers:

- Alive: the parent supervises its workers, and a worker runs or is about to be started. An outage of the database or of
  Redis is not a reason to restart the process.
- Ready: alive, and the migrations are applied, a worker is ready, the database has answered lately and did not go back
  in time (`durable.marks`: workers claim nothing then), and no stop was requested. If Redis does not answer, the
  process is ready but degraded: work is late, not lost.
"""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

from redis.exceptions import RedisError

from durable.conf import conf
from durable.notifier import redis_clients
from durable.worker.supervisor import Supervisor

# Seconds without a tick of the Supervisor, which ticks every second: the machine may be busy.
STUCK: Final = 30.0
# Seconds without any worker process: several restarts at their longest pause.
WITHOUT_WORKERS: Final = 60.0
# The database must have answered within this many seconds plus three sweeps: a failover takes less.
RECENT: Final = 10.0
ASK_REDIS: Final = 5.0  # seconds between two pings of Redis, about as often as probes come
MOST: Final = 16  # connections at the same time: enough for several probers
MAX_HEAD: Final = 8_192  # bytes of a request, as web servers allow
DEADLINE: Final = 2.0  # seconds for a request to arrive, and for its response to be sent; probes time out earlier

OK: Final = "ok"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a probe: each check in words, the failed checks, and the checks that only make work `late`."""

    checks: dict[str, str]
    failed: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()

    @property
    def status(self) -> str:
        """ "ok", "degraded" or "failed"."""
        return "failed" if self.failed else "degraded" if self.late else OK

    def as_json(self) -> str:
        """Return JSON: `{"status": "ok", "checks": {"workers": "2 of 2 ready"}}`."""
        return json.dumps({"status": self.status, "checks": self.checks})

    def as_text(self) -> str:
        """Return the status on the first line, and each check on a line of its own."""
        return "".join(
            f"{line}\n" for line in (self.status, *(f"{name}: {what}" for name, what in self.checks.items()))
        )


@dataclass(slots=True)
class Health:
    """What the parent process knows about its state. `missing_migrations` is None until they were queried."""

    missing_migrations: list[str] | None = None
    supervisor: Supervisor | None = None
    _began: float = field(default_factory=time.monotonic)
    _redis_problem: str = ""
    _redis_asked_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def live(self) -> Report:
        """Report whether the process is alive. If it is not, it should be restarted."""
        supervisor = self.supervisor
        if supervisor is None:
            return Report({"supervisor": "waiting for the database or its migrations"})
        checks, failed = {"supervisor": OK, "workers": _workers(supervisor)}, set()
        now = time.monotonic()
        if now - supervisor.ticked_at > STUCK:
            checks["supervisor"] = f"has not looked after its workers for {now - supervisor.ticked_at:.0f} s"
            failed.add("supervisor")
        if now - supervisor.had_worker_at > WITHOUT_WORKERS:
            checks["workers"] = f"none has run for {now - supervisor.had_worker_at:.0f} s"
            failed.add("workers")
        return Report(checks, frozenset(failed))

    def ready(self) -> Report:
        """Report whether the process can do its work."""
        live = self.live()
        checks, failed, late = dict(live.checks), set(live.failed), set()
        for name, problem in (
            ("migrations", self._migrations()),
            ("database", self._database()),
            ("workers", self._no_worker_is_ready()),
        ):
            checks[name] = problem or checks.get(name, OK)
            if problem:
                failed.add(name)
        if conf.REDIS:
            problem = self._redis()
            checks["redis"] = problem or OK
            if problem:
                late.add("redis")
        else:
            checks["redis"] = "not used"
        if self.supervisor is not None and self.supervisor.is_stopping:
            checks["supervisor"] = "was told to stop"
            failed.add("supervisor")
        return Report(checks, frozenset(failed), frozenset(late))

    def _migrations(self) -> str:
        if self.missing_migrations is None:
            return "not known yet"
        return f"missing: {', '.join(self.missing_migrations)}" if self.missing_migrations else ""

    def _database(self) -> str:
        answered_at = self.supervisor.database_answered_at if self.supervisor is not None else None
        if answered_at is None:
            return "has not answered yet"
        silent = time.monotonic() - answered_at
        if silent > RECENT + 3 * conf.SWEEP_INTERVAL:
            return f"has not answered for {silent:.0f} s"
        return self.supervisor.claims_nothing if self.supervisor is not None else ""

    def _no_worker_is_ready(self) -> str:
        return "none is ready yet" if self.supervisor is None or not self.supervisor.ready_workers else ""

    def _redis(self) -> str:
        with self._lock:  # concurrent probes wait for the answer
            if time.monotonic() - self._redis_asked_at >= ASK_REDIS:
                self._redis_problem = _problem_of_redis()
                self._redis_asked_at = time.monotonic()
            return self._redis_problem


def _workers(supervisor: Supervisor) -> str:
    return f"{supervisor.ready_workers} of {len(supervisor.children)} ready"


def _problem_of_redis() -> str:
    try:
        for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
            redis.ping()
    except (RedisError, OSError) as error:
        return f"does not answer ({type(error).__name__}): workers poll the database until it is back"
    return ""


@contextmanager
def served(health: Health, port: int, address: str) -> Iterator[int]:
    """Answer probes in a thread each. Yield the port; the system chooses it if `port` is 0. Raises OSError."""
    server = _Server((address, port), health)
    thread = threading.Thread(target=server.serve_forever, name="durable-health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, TCPServer):
    """A TCP server with a thread for each connection, and at most `MOST` connections.

    A further connection replaces the oldest one whose request has not arrived: silent connections must not block
    probes, because a failed probe restarts the process.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST

    def __init__(self, at: tuple[str, int], health: Health) -> None:
        self.health = health
        self._free = threading.BoundedSemaphore(MOST)
        self._unread: dict[socket.socket, None] = {}  # connections whose request has not arrived, in order
        self._lock = threading.Lock()
        if ":" in at[0]:
            self.address_family = socket.AF_INET6
        super().__init__(at, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread if one is free or can be freed, otherwise close the connection."""
        if not (self._free.acquire(blocking=False) or self._free_oldest()):
            self.shutdown_request(request)
            return
        with self._lock:
            self._unread[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.request_arrived(request)
            self._free.release()
            raise

    def _free_oldest(self) -> bool:
        """Close the oldest connection whose request has not arrived, to free its place. Return False if there is
        none.
        """
        with self._lock:
            oldest = next(iter(self._unread), None)
            if oldest is None:
                return False
            del self._unread[oldest]
        with suppress(OSError):  # it has just been closed
            oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=DEADLINE)

    def request_arrived(self, request: socket.socket) -> None:
        """Record that the connection's request has arrived, or will not."""
        with self._lock:
            self._unread.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.request_arrived(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that disconnects or sends nothing is not an error."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of two paths."""

    server: _Server
    error_content_type = "text/plain"
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        """Read the whole head of the request before a deadline. No request has a body."""
        super().setup()
        self.rfile: Any = io.BytesIO(_head(self.connection))
        self.server.request_arrived(self.connection)
        self.connection.settimeout(DEADLINE)

    def do_GET(self) -> None:
        """Answer a probe."""
        path, _, query = self.path.partition("?")
        if path not in ("/livez", "/readyz"):
            self.send_error(HTTPStatus.NOT_FOUND, "there are /livez and /readyz")
            return
        report = self.server.health.live() if path == "/livez" else self.server.health.ready()
        is_json = "application/json" in self.headers.get("Accept", "") or query == "format=json"
        body = (report.as_json() if is_json else report.as_text()).encode()
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE if report.failed else HTTPStatus.OK)
        self.send_header("Content-Type", "application/json" if is_json else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def version_string(self) -> str:
        """Return a name without versions."""
        return "durable"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""


def _head(connection: socket.socket) -> bytes:
    """Read a request up to the blank line.

    Raises TimeoutError, and ValueError for a request that is too long or ends too early.
    """
    until = time.monotonic() + DEADLINE
    read = b""
    while b"\r\n\r\n" not in read and b"\n\n" not in read:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(MAX_HEAD)
        read += data
        if not data or len(read) > MAX_HEAD:
            raise ValueError
    return read
