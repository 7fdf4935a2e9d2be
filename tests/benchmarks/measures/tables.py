"""How costs grow with what lies in the tables: of passes and claims, and of the pages of the admin."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.cookies import SimpleCookie
from io import BytesIO
from statistics import median
from typing import Any
from urllib.parse import unquote
from wsgiref.types import WSGIApplication
from wsgiref.util import setup_testing_defaults

from django.conf import settings
from django.contrib.auth.models import User
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from durable.conf import conf
from durable.store import store_for
from tests.admin.bigdata import LONG, fill
from tests.benchmarks.measuring import Bench, Figure, measure, seconds
from tests.benchmarks.passing import claimed, empty_tables, one_pass, work_off
from tests.benchmarks.workflows import steps

#: Copies of a run, in bulk, as the engine leaves them. Parameters: prefix, state, count.
FILL = """INSERT INTO durable_run SELECT copy.* FROM durable_run AS t, generate_series(1, %(count)s) AS n,
  jsonb_populate_record(t, jsonb_build_object('id', %(prefix)s || n, 'state', %(state)s::text,
    'wake_at', CASE WHEN %(state)s = 'sleeping' THEN now() + interval '1 day' + n * interval '1 s' END,
    'finished_at', CASE WHEN %(state)s = 'completed' THEN now() END)) AS copy"""


@measure("growth")
def growth(bench: Bench) -> Iterator[Figure]:
    """What takes longer when there is ten times as much: the time for ten times, divided by ten times that for once.
    among 10,000 and 100,000 sleeping or finished ones; and twenty claims alone out of 2,000 and 20,000 due runs. Shows
    no table that is larger than memory.
    """
    few = bench.size(1500, 30)
    first, tenfold = (_steps(count) for count in (few, 10 * few))
    yield Figure("growth with 10x steps", tenfold / first / 10, "times")
    others = bench.size(10_000, 300)
    for state in ("sleeping", "completed"):
        first, tenfold = (_claims(bench, state, count) for count in (others, 10 * others))
        yield Figure(f"growth with 10x {state} runs", tenfold / first, "times")
    due = bench.size(2000, 200)
    first, tenfold = (_batches(count) for count in (due, 10 * due))
    yield Figure("growth of a claim with 10x due runs", tenfold / first, "times")


def _steps(count: int) -> float:
    record = claimed(steps.start(count))
    return seconds(lambda: one_pass(record))


def _claims(bench: Bench, state: str, others: int) -> float:
    empty_tables()
    steps.start(1)
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"prefix": f"{state}-", "state": state, "count": others})
        cursor.execute("VACUUM (ANALYZE) durable_run")  # tables that have grown by and by have been vacuumed
    for _ in range(bench.size(4, 1)):
        steps.start_many([(1,)] * bench.size(500, 20))
    return seconds(work_off)


def _batches(due: int) -> float:
    """Twenty claims out of so many due runs."""
    empty_tables()
    for first in range(0, due, 500):
        steps.start_many([(1,)] * min(500, due - first))
    now, store = timezone.now(), store_for("default")
    until = now + timedelta(hours=1)

    def work() -> None:
        for _ in range(20):
            assert store.claim(queue=conf.QUEUE, now=now, lease_until=until, worker="benchmark", limit=10)

    return seconds(work)


@measure("pages")
def pages(bench: Bench) -> Iterator[Figure]:
    """What the server takes for a page of the admin among 1,000,000 runs, one of which has 10,000 entries.

    Milliseconds, the median of 30. The pages are the list as it opens, of the failed runs, and of those failed runs
    whose error has a text that none has, so that the whole window is looked through; the long run's page as it opens,
    with the timeline, and at the end of its history's tree; the overview. A superuser's requests, one after the other,
    through the WSGI application, middleware and session included. Shows neither a WSGI server nor a browser nor what
    others ask meanwhile; and no run of many messages, which a page shows thirty of.
    """
    lists = reverse("admin:durable_run_changelist")
    addresses = {
        "changelist": lists,
        "changelist, one state": f"{lists}?state=failed",
        "changelist, a search": f"{lists}?state=failed&q=a+text+that+none+has",
        "page of a run": f"{reverse('admin:durable_run_change', args=[LONG])}?part=history",
        "timeline of a run": reverse("admin:durable_run_change", args=[LONG]),
        "overview": reverse("admin:app_list", args=["durable"]),
    }
    try:
        fill(runs=bench.size(1_000_000, 3_000), entries=bench.size(10_000, 300))
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE)")  # tables that have grown by and by have been vacuumed
        browser = Browser()
        for name, address in addresses.items():
            times = [seconds(partial(browser.get, address)) for _ in range(bench.size(32, 5))]
            yield Figure(name, median(times[2:]) * 1000, "ms")  # the first ones load templates and warm caches
    finally:
        empty_tables()


class Browser:
    """A user who is logged in and has all permissions."""

    def __init__(self) -> None:
        user, _ = User.objects.get_or_create(username="benchmark", is_staff=True, is_superuser=True)
        client = Client()
        client.force_login(user)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        self._cookies = SimpleCookie({settings.SESSION_COOKIE_NAME: session}).output(header="", sep=";").strip()
        self._application: WSGIApplication = get_wsgi_application()

    def get(self, address: str) -> bytes:
        """The page. Raises RuntimeError for any other answer than a page."""
        path, _, query = address.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "HTTP_COOKIE": self._cookies,
            "wsgi.input": BytesIO(),
        }
        setup_testing_defaults(environ)
        answered: list[str] = []

        def start(status: str, *_: Any) -> Any:
            answered.append(status)

        response = self._application(environ, start)
        try:
            body = b"".join(response)
        finally:
            response.close()  # type: ignore[attr-defined]  # Django's responses have one; it ends the request
        if answered != ["200 OK"]:
            raise RuntimeError(f"{address} was answered with {answered[0]}, not with a page")
        return body
