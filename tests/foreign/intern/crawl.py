"""Walks through the project as a browser and a client of its REST would, and prints what it met: one JSON object.

`python -m tests.foreign.intern.crawl` in an environment with DATABASE_URL (an empty database) and
DJANGO_SETTINGS_MODULE=tests.foreign.intern.settings, which says what else the environment may have. With
WITHOUT_DURABLE it prints the project's own pages alone.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import django
import httpx
from django.apps import apps

django.setup()

from django.contrib.auth.models import Permission  # noqa: E402  # after the setup, as in a project
from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connections  # noqa: E402
from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from django.urls import Resolver404, ResolverMatch, resolve, reverse, set_script_prefix  # noqa: E402

from tests.foreign.intern.models import Member, Race  # noqa: E402
from tests.foreign.intern.settings import IS_ASGI, MOUNTED_AT, Counting  # noqa: E402

ROOT, STAFF = "root@example.com", "staff@example.com"
ADMIN, REST = f"{MOUNTED_AT}/intern/verwaltung/", f"{MOUNTED_AT}/intern/durable/"
#: Pages of the project's own.
OWN = (
    *(f"{MOUNTED_AT}/", ADMIN, f"{ADMIN}intern/", f"{ADMIN}intern/race/", f"{ADMIN}intern/race/1/change/"),
    f"{MOUNTED_AT}/rest/runs/",
)
#: How many addresses of one pattern and with the same names in their query are followed: they differ in a value.
MOST_ALIKE = 4

#: A stream of a run that goes on does not end; `ask_every_address` asks that of one that has ended.
NOT_FOLLOWED = {"admin:logout", "durable_api:events"}
#: Where an element has an address: those that a page leads to, and what it loads, sends and asks for by itself.
ADDRESSES = {"href", "src", "action", "formaction", "data-durable-live", "data-durable-known", "data-root"}
EVENT_STREAM = {"accept": "text/event-stream"}


@contextmanager
def served() -> Iterator[Callable[[], httpx.Client]]:
    """The project behind a server that has it below the path of the settings; what makes clients of it.

    Under ASGI the server is a real one, and leaves the path to Django. Under WSGI the server takes it away.
    """
    if IS_ASGI:
        from tests.api.serving import asgi_server

        with asgi_server() as address:
            yield partial(httpx.Client, base_url=address, timeout=120)
        return
    yield lambda: httpx.Client(base_url="http://testserver", transport=Mount(get_wsgi_application()))


class Mount(httpx.BaseTransport):
    """Asks an application in this thread as a server does that has it below a path: WSGI's SCRIPT_NAME."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = unquote_to_bytes(request.url.raw_path.partition(b"?")[0]).decode("latin-1")  # as WSGI has it
        assert path.startswith(f"{MOUNTED_AT}/"), path
        within = {"SCRIPT_NAME": MOUNTED_AT, "PATH_INFO": path.removeprefix(MOUNTED_AT)}

        def application(environ: dict[str, Any], start: Any) -> Any:
            return self._application({**environ, **within}, start)

        return httpx.WSGITransport(application, raise_app_exceptions=False).handle_request(request)


class Links(HTMLParser):
    """The addresses that a page leads to, those in its list of places, and all that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leading: list[str] = []
        self.places: set[str] = set()
        self.all: list[str] = []
        self._in_places = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "nav":
            self._in_places = "durable-places" in (given.get("class") or "")
        self.all += [value for name, value in attrs if name in ADDRESSES and value]
        address = given.get("href")
        if address:
            self.leading.append(address)
            if self._in_places:
                self.places.add(address)

    def handle_endtag(self, tag: str) -> None:
        if tag == "nav":
            self._in_places = False


class Crawler:
    """Asks as one user, keeps each answer's status, and follows what the answers lead to.

    `outside` has the addresses of this server that are not below the path where the project is, and where they stand.
    """

    def __init__(self, client: httpx.Client, email: str) -> None:
        self.client = client
        self.asked: list[tuple[str, str, int]] = []
        self.outside: list[tuple[str, str]] = []
        self.with_places = 0
        self.without_places: list[str] = []
        self._seen: set[str] = set()
        self._alike: dict[Any, int] = {}
        there = self.client.get(ADMIN)
        assert there.status_code == 302, there.status_code
        form = self.client.get(there.headers["location"])
        assert form.status_code == 200, form.text
        done = self._post(there.headers["location"], data={"username": email, "password": "walking", "next": ADMIN})
        assert (done.status_code, done.headers.get("location")) == (302, ADMIN), done.text

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask, and look at the answer."""
        return self._get(path, **headers)[0]

    def _get(self, path: str, **headers: str) -> tuple[httpx.Response, Links]:
        answer = self.client.get(path, headers=headers)
        links = self._look_at("get", path, answer)
        if answer.status_code == 200 and 'id="durable-page"' in _html(answer):
            self.with_places += 1
            if not {reverse(f"admin:{each}") for each in PLACES} <= links.places:
                self.without_places.append(path)
        return answer, links

    def post(self, path: str, **body: Any) -> None:
        """Post, and look at the answer. `body` is what httpx takes."""
        self._look_at("post", path, self._post(path, **body))

    def _post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, headers={"x-csrftoken": self.client.cookies["csrftoken"]}, **body)

    def _look_at(self, method: str, path: str, answer: httpx.Response) -> Links:
        self.asked.append((method, path.removeprefix(MOUNTED_AT), answer.status_code))
        links = Links(_html(answer))
        found = [*links.all, *filter(None, [answer.headers.get("location")])]
        if "json" in _kind(answer):  # which has paths of files, too
            found += [each for each in _addresses_in_json(answer) if _resolved(urlsplit(each).path)]
        self.outside += [(path, each) for each in found if (at := self._here(path, each)) and not _is_below(at)]
        return links

    def follow(self, *starts: str) -> None:
        """Ask what can be reached from there."""
        waiting = deque(starts)
        while waiting:
            path = waiting.popleft()
            if path not in self._seen and self._is_wanted(path):
                self._seen.add(path)
                waiting.extend(self._leads(path, *self._get(path)))

    def _is_wanted(self, path: str) -> bool:
        split = urlsplit(path)
        found = _resolved(split.path.removeprefix(MOUNTED_AT))
        if found is None or found.view_name in NOT_FOLLOWED:
            return False
        kind = (found.view_name, *sorted(set(re.findall(r"(?:^|&)([^=&]+)", split.query))))
        self._alike[kind] = self._alike.get(kind, 0) + 1
        return self._alike[kind] <= MOST_ALIKE

    def _leads(self, path: str, answer: httpx.Response, links: Links) -> Iterator[str]:
        found = [*filter(None, [answer.headers.get("location")]), *links.leading]
        found += _addresses_in_json(answer) if "json" in _kind(answer) else []
        for each in found:
            if at := self._here(path, each):
                yield at

    def _here(self, path: str, address: str) -> str:
        """The address as it is asked for, "" for one of another server."""
        base = self.client.base_url
        split = urlsplit(urljoin(f"{base.scheme}://{base.netloc.decode()}{path}", address))
        if split.netloc != base.netloc.decode():
            return ""
        return f"{split.path}?{split.query}" if split.query else split.path


PLACES = ("durable_run_changelist", "durable_run_causes", "durable_run_queues", "durable_run_workers")


def _is_below(path: str) -> bool:
    return path.startswith(f"{MOUNTED_AT}/") or path == MOUNTED_AT


def _resolved(path: str) -> ResolverMatch | None:
    with suppress(Resolver404):
        return resolve(path)
    return None


def _kind(answer: httpx.Response) -> str:
    kind: str = answer.headers.get("content-type", "")
    return kind


def _html(answer: httpx.Response) -> str:
    return answer.text if _kind(answer).startswith("text/html") else ""


def _addresses_in_json(answer: httpx.Response) -> list[str]:
    return re.findall(r'"((?:https?://[\w.:]+)?/[^"\s{}]*)"', answer.text)


def fill() -> dict[str, str]:
    """Runs in different states, some of which fail; what stands for the braces of addresses."""
    from durable import get_run, people, workflow
    from durable.models import Child
    from tests.admin import flows
    from tests.admin.addresses import make_site
    from tests.admin.conftest import staged
    from tests.api.addresses import make_runs

    with staged() as stage:
        site = make_site(stage)
        stage.start(flows.stubborn, id="backs off")
        stage.start(flows.saga, id="ü?undone &")
        stage.start(flows.night, 3, id="parent")
        for child in list(Child.objects.using("default").filter(parent="parent").values_list("run_id", flat=True)):
            stage.settle(child)
        stage.settle("parent")
        flows.SWITCH["broken"] = False
        stage.start(flows.quick, {"a": 1}, id="completed")
        stage.start(flows.nap, id="sleeps")
        stage.start(flows.album, id="loops")
        stage.start(flows.branches, id="branches")
        stage.start(flows.approve, id="waits")
        get_run("waits").send("other", {"a": 1})
        asking = workflow(name="intern.asks")(lambda ctx: ctx.ask_person("approve", permission="durable.view_run").data)
        stage.start(asking, id="asks")
        [question] = people.questions_of("asks")
        return {**site, "{question}": question.id, **make_runs()}


def ask_every_address(crawler: Crawler, site: dict[str, str]) -> list[str]:
    """Ask each address of durable's by GET and by POST; the names of those that no table has."""
    from tests.admin.addresses import ALL, OF_PEOPLE, Address
    from tests.api.addresses import READS, WRITES
    from tests.support.addresses import Asked, names_of_admin, names_of_interface, path_of

    of_people = {**OF_PEOPLE, "question": Address((site["{question}"],))}
    pages = {**ALL, **{f"admin:durable_run_{name}": each for name, each in of_people.items()}}

    reads = {f"durable_api:{name}": each for name, each in READS.items()}
    writes = {f"durable_api:{name}": each for name, each in WRITES.items()}
    asked: dict[str, Asked] = {**pages, **reads}
    for name, address in asked.items():
        crawler.get(path_of(name, address, site))
    crawler.get(reverse("durable-metrics"))
    for name, page in pages.items():
        crawler.post(path_of(name, page, site), data=dict(page.data))
    for name, verb in writes.items():
        crawler.post(path_of(name, verb, site), json=dict(verb.body or {}))
    return sorted((names_of_admin() | names_of_interface()) - asked.keys() - writes.keys())


def read_events(crawler: Crawler) -> dict[str, Any]:
    """The events of a run that has ended, of one that ends while its stream is open, and what readers leave behind."""
    from durable import get_run
    from durable.api import broadcaster
    from tests.support.waiting import eventually

    ended = crawler.get(reverse("durable_api:events", args=["completed"]), **EVENT_STREAM)
    lines: list[str] = []
    with crawler.client.stream("GET", reverse("durable_api:events", args=["waits"]), headers=EVENT_STREAM) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if lines.count("event: run") == 1 and line == "event: run":
                get_run("waits").cancel()
    if IS_ASGI:
        for path in [reverse("durable_api:events", args=["sleeps"]), ADMIN, f"{ADMIN}durable/"] * 5:
            _go_away(crawler.client, path)
        eventually(lambda: broadcaster.streams.streams == 0)
    return {
        "of_completed": re.findall(r"^event: (\w+)$", ended.text, re.MULTILINE),
        "while_open": re.findall(r"^event: (\w+)$", "\n".join(lines), re.MULTILINE),
        "status_after": crawler.get(f"{ADMIN}durable/").status_code,
    }


def _go_away(client: httpx.Client, path: str) -> None:
    """Ask, and close the connection before there is an answer."""
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    request = f"GET {path} HTTP/1.1\r\nHost: testserver\r\nAccept: text/event-stream\r\nCookie: {cookies}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=60) as connection:
        connection.sendall(request.encode())


@contextmanager
def watched(alias: str) -> Iterator[list[str]]:
    """What is executed on a database, in whatever thread, from connections that are made within the block on."""
    executed: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        executed.append(sql)
        return execute(sql, params, many, context)

    def watch(connection: BaseDatabaseWrapper, **_: object) -> None:
        if connection.alias == alias and note not in connection.execute_wrappers:
            connection.execute_wrappers.append(note)

    connections[alias].close()
    connection_created.connect(watch)
    try:
        yield executed
    finally:
        connection_created.disconnect(watch)
        connections[alias].close()


def walk(make_client: Callable[[], httpx.Client]) -> dict[str, Any]:
    """Walk through durable, and what was met there."""
    from durable.models import OperatorAction, Run

    site = fill()
    with watched("replica") as at_the_replica:
        root = Crawler(make_client(), ROOT)
        root.follow(ADMIN, REST, f"{REST}schema")
        missed = ask_every_address(root, site)
        streams = read_events(root)
    actions, runs = OperatorAction.objects.using("default"), Run.objects.using("default")
    return {
        "asked": root.asked,
        "outside": root.outside,
        "missed": missed,
        "streams": streams,
        "with_places": root.with_places,
        "without_places": root.without_places,
        "read_at_the_replica": [sql for sql in at_the_replica if '"durable_' in sql],
        "of_users_at_the_replica": len([sql for sql in at_the_replica if 'FROM "intern_member"' in sql]),
        "strangers": actions.filter(actor_label=ROOT, actor=None).count(),
        "known": actions.filter(actor__email=ROOT).count(),
        "failed": sorted(runs.filter(state="failed").values_list("pk", flat=True)),
    }


def main() -> None:
    """Fill the database, walk, and print."""
    set_script_prefix(f"{MOUNTED_AT}/")
    call_command("migrate", verbosity=0)
    call_command("check", fail_level="WARNING", databases=["default"], stdout=sys.stderr)
    Race.objects.create(name="Marathon", metres=42_195)
    Member.objects.create_superuser(ROOT, "walking")
    staff_member = Member.objects.create_user(STAFF, "walking", is_staff=True)
    staff_member.user_permissions.add(Permission.objects.get(codename="change_race"))
    with served() as make_client:
        told = walk(make_client) if apps.is_installed("durable") else {}
        root, staff = Crawler(make_client(), ROOT), Crawler(make_client(), STAFF)
        told |= {
            "pages": {
                f"{who}: {path.removeprefix(MOUNTED_AT)}": each.get(path).text
                for who, each in (("root", root), ("staff", staff))
                for path in OWN
            },
            "statuses": {path: status for _, path, status in staff.asked},
            "schema": root.get(f"{MOUNTED_AT}/rest-schema/").json(),
            "events": [
                {"run": each.get("extra", {}).get("run_id"), "said": each.get("logentry") or each.get("exception")}
                for each in Counting.events
                if not each.get("logger", "").startswith("ddtrace")  # nobody takes its traces here
            ],
            "proxied": type(connections["default"].connection).__name__,
        }
    json.dump(told, sys.stdout, default=str)


if __name__ == "__main__":
    main()
