"""The API, a server that notes each request; and what must hold of what it has seen, and of a log of a trigger.

The trigger notes each change of `begun` of a rate's key: the moment of each attempt that was let begin. It happens
under the lock of the key's row, so the log has all of them in order. Between a moment and the arrival of its request
anything may pass: a request is never early, and may be late.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

from django.db import connection

from durable.core.limits.rates import Rate
from durable.models import Reservation, Run, Slot
from tests.support import http


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

    with http.served(Handler) as address:
        yield address


_LOG = """
CREATE TABLE limited_api_log (seq bigserial PRIMARY KEY, begun bigint);
CREATE FUNCTION limited_api_begun() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.begun <> OLD.begun THEN INSERT INTO limited_api_log (begun) VALUES (NEW.begun); END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER limited_api_begun AFTER UPDATE ON durable_ratekey FOR EACH ROW EXECUTE FUNCTION limited_api_begun();
"""


def install() -> None:
    """Create the log and its trigger."""
    with connection.cursor() as cursor:
        cursor.execute(_LOG)


def moments() -> list[int]:
    """Return the theoretical arrival times of the attempts that were let begin, in nanoseconds, in their order."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT begun FROM limited_api_log ORDER BY seq")
        return [begun for (begun,) in cursor.fetchall()]


def broken_promises(api: Api, rate: Rate, at_once: int, began_at: float, runs: Counter[str]) -> list[str]:
    """What is wrong; [] if all is well. `runs` is how many runs of each tenant were started, not before `began_at`."""
    return [
        *_ends(runs),
        *_moments(api, rate),
        *_arrivals(api, rate, began_at),
        *(f"{number} requests of {each} at once" for each, number in api.most.items() if number > at_once),
    ]


def _ends(runs: Counter[str]) -> Iterator[str]:
    left = Run.objects.exclude(state="completed").order_by("pk")
    yield from (f"{run.pk} is {run.state}: {run.summary or run.error}" for run in left[:10])
    if (number := Run.objects.count()) != runs.total():
        yield f"{number} runs, not {runs.total()}"
    for model in (Slot, Reservation):
        if left_over := list(model.objects.values_list("run_id", "limit", "key")[:10]):
            yield f"rows of {model.__name__} are left: {left_over}"


def _moments(api: Api, rate: Rate) -> Iterator[str]:
    """Whether moments are never closer than the rate allows; and whether each request had one."""
    found = moments()
    for before, after in zip(found, found[rate.burst :], strict=False):
        if after - before < rate.burst * rate.spacing:
            yield f"{rate.burst + 1} attempts have begun within {(after - before) / 1e9:.6f} s"
    if len(found) < len(api.arrivals):
        yield f"{len(api.arrivals)} requests, of which {len(found)} had a moment"


def _arrivals(api: Api, rate: Rate, began_at: float) -> Iterator[str]:
    """Whether any request was early: the one with the number n cannot have come before the moment n of the rate."""
    for number, (at, tenant) in enumerate(api.arrivals):
        earliest = began_at + max(0, number + 1 - rate.burst) * rate.spacing / 1e9
        if at < earliest:
            yield f"request {number} (of {tenant}) arrived {earliest - at:.3f} s too early"
