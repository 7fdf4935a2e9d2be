"""Limits while workers are killed: the service behind them never sees more callers than allowed, and all runs end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from durable import Handle
from durable.models import Run, Slot
from tests.e2e.workers import Workers
from tests.faults.workflows import limited

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

TENANTS = 4
RUNS = 10  # of each tenant
KILLS = 6
BUSY = 0.05  # seconds that the service takes for a call; a killed caller is gone for longer: its lease has to end first


class Service:
    """Counts who calls it at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @contextmanager
    def called(self, what: str) -> Iterator[None]:
        with self.lock:
            self.now[what] += 1
            self.most[what] = max(self.most[what], self.now[what])
        try:
            time.sleep(BUSY)
            yield
        finally:
            with self.lock:
                self.now[what] -= 1


@contextmanager
def served(service: Service) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tenant, what = self.path.strip("/").split("/")
            with service.called(tenant if what == "first" else "all"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

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


def test_a_service_is_never_called_by_more_than_its_limits_allow(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    log, service = tmp_path / "workers.log", Service()
    dice = random.Random(16)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    options = ["--concurrency", "4"]
    with served(service) as url:
        handles: list[Handle] = [
            limited.using(id=f"tenant-{tenant}-{number}").start(url, f"tenant-{tenant}")
            for number in range(RUNS)
            for tenant in range(TENANTS)
        ]
        with Workers(2, environment, log, settings="tests.faults.settings", options=options) as workers:
            deadline = time.monotonic() + 400
            while Run.objects.open().exists():
                left = list(Run.objects.open().values("id", "state", "crashes", "summary", "wake_at")[:20])
                assert time.monotonic() < deadline, f"{left}; {log.read_text(errors='replace')[-3000:]}"
                time.sleep(dice.uniform(0.1, 0.6))
                if workers.kills < KILLS:
                    workers.kill_one(dice)
    assert [handle.output for handle in handles] == [["ok", "ok"]] * len(handles)
    assert service.most.keys() == {"all", *(f"tenant-{each}" for each in range(TENANTS))}
    assert 2 <= service.most.pop("all") <= 3
    assert set(service.most.values()) <= {1, 2}
    assert not Slot.objects.exists()
