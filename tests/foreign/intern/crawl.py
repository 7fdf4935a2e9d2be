"""Walks through the project as a browser and a client of its REST would, and prints what it met: one JSON object.

`python -m tests.foreign.intern.crawl` in an environment with DATABASE_URL (an empty database) and
DJANGO_SETTINGS_MODULE=tests.foreign.intern.settings. With WITHOUT_DURABLE it prints the project's own pages alone.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import django
from django.apps import apps

django.setup()

from django.contrib.auth.models import Permission  # noqa: E402  # after the setup, as in a project
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.client import MULTIPART_CONTENT  # noqa: E402
from django.urls import Resolver404, resolve, reverse  # noqa: E402

from tests.foreign.intern.models import Member, Race  # noqa: E402
from tests.foreign.intern.settings import Counting  # noqa: E402

ROOT, STAFF = "root@example.com", "staff@example.com"
ADMIN, REST = "/intern/verwaltung/", "/intern/durable/"
#: Pages of the project's own.
OWN = ("/", ADMIN, f"{ADMIN}intern/", f"{ADMIN}intern/race/", f"{ADMIN}intern/race/1/change/", "/rest/runs/")
#: How many addresses of one pattern and with the same names in their query are followed: they differ in a value.
MOST_ALIKE = 4

#: A stream of a run that goes on does not end; `ask_every_address` asks that of one that has ended.
NOT_FOLLOWED = {"admin:logout", "durable_api:events"}


class Links(HTMLParser):
    """The addresses that a page leads to, and those in its list of places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.all: list[str] = []
        self.places: set[str] = set()
        self._in_places = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "nav":
            self._in_places = "durable-places" in (given.get("class") or "")
        address = given.get("href")
        if address:
            self.all.append(address)
            if self._in_places:
                self.places.add(address)

    def handle_endtag(self, tag: str) -> None:
        if tag == "nav":
            self._in_places = False


class Crawler:
    """Asks as one user, keeps each answer's status, and follows what the answers lead to."""

    def __init__(self, email: str) -> None:
        self.client = Client(raise_request_exception=False, headers={"accept-encoding": "gzip"})
        self.asked: list[tuple[str, str, int]] = []
        self.events: list[str] = []
        self.with_places = 0
        self.without_places: list[str] = []
        self._seen: set[str] = set()
        self._alike: dict[Any, int] = {}
        there = self.client.get(ADMIN)
        assert there.status_code == 302, there.status_code
        done = self.client.post(there["Location"], {"username": email, "password": "walking", "next": ADMIN})
        assert (done.status_code, done["Location"]) == (302, ADMIN), done.content

    def get(self, path: str, **headers: str) -> str:
        """The text of an answer; of a stream the first part."""
        answer: Any = self.client.get(path, headers=headers)
        self.asked.append(("get", path, answer.status_code))
        kind = answer.get("Content-Type", "")
        if answer.streaming:
            first = next(iter(answer), b"")
            answer.close()
            return _plain(first)
        if kind.startswith("text/event-stream"):
            self.events += re.findall(r"^event: (\w+)$", _plain(answer.content), re.MULTILINE)
            return ""
        text = _plain(answer.content) if kind.startswith("text/html") or "json" in kind else ""
        if answer.status_code == 200 and 'id="durable-page"' in text:
            self.with_places += 1
            if not {reverse(f"admin:{each}") for each in PLACES} <= Links(text).places:
                self.without_places.append(path)
        return f"{text}\0{answer['Location']}" if answer.has_header("Location") else text

    def post(self, path: str, data: Any, kind: str = MULTIPART_CONTENT) -> None:
        """Post, and keep the status."""
        answer = self.client.post(path, data, kind)
        self.asked.append(("post", path, answer.status_code))

    def follow(self, *starts: str) -> None:
        """Ask what can be reached from there."""
        waiting = deque(starts)
        while waiting:
            path = waiting.popleft()
            if path not in self._seen and self._is_wanted(path):
                self._seen.add(path)
                waiting.extend(_leads(path, self.get(path)))

    def _is_wanted(self, path: str) -> bool:
        split = urlsplit(path)
        with suppress(Resolver404):
            if (found := resolve(split.path)).view_name not in NOT_FOLLOWED:
                kind = (found.view_name, *sorted(set(re.findall(r"(?:^|&)([^=&]+)", split.query))))
                self._alike[kind] = self._alike.get(kind, 0) + 1
                return self._alike[kind] <= MOST_ALIKE
        return False


PLACES = ("durable_run_changelist", "durable_run_causes", "durable_run_queues", "durable_run_workers")


def _plain(content: bytes) -> str:
    return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode(errors="replace")


def _leads(path: str, text: str) -> Iterator[str]:
    text, _, location = text.partition("\0")
    found = [location] if location else []
    found += re.findall(r'"((?:https?://testserver)?/[^"\s{}]*)"', text) if text[:1] in "[{" else Links(text).all
    for each in found:
        split = urlsplit(urljoin(f"http://testserver{path}", each))
        if split.netloc == "testserver" and not split.path.startswith("/static/"):
            yield f"{split.path}?{split.query}" if split.query else split.path


def fill() -> dict[str, str]:
    """Runs in different states, some of which fail; what stands for the braces of addresses."""
    from durable import get_run
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
        return {**site, **make_runs()}


def ask_every_address(crawler: Crawler, site: dict[str, str]) -> list[str]:
    """Ask each address of durable's by GET and by POST; the names of those that no table has."""
    from tests.admin.addresses import ALL
    from tests.api.addresses import READS, WRITES
    from tests.support.addresses import Asked, names_of_admin, names_of_interface, path_of

    reads = {f"durable_api:{name}": each for name, each in READS.items()}
    writes = {f"durable_api:{name}": each for name, each in WRITES.items()}
    asked: dict[str, Asked] = {**ALL, **reads}
    for name, address in asked.items():
        crawler.get(path_of(name, address, site))
    crawler.get(reverse("durable_api:events", args=["completed"]), accept="text/event-stream")
    crawler.get(reverse("durable-metrics"))
    for name, page in ALL.items():
        crawler.post(path_of(name, page, site), dict(page.data))
    for name, verb in writes.items():
        crawler.post(path_of(name, verb, site), json.dumps(dict(verb.body or {})), "application/json")
    return sorted((names_of_admin() | names_of_interface()) - asked.keys() - writes.keys())


def main() -> None:
    """Fill the database, walk, and print."""
    call_command("migrate", verbosity=0)
    call_command("check", fail_level="WARNING", databases=["default"], stdout=sys.stderr)
    Race.objects.create(name="Marathon", metres=42_195)
    Member.objects.create_superuser(ROOT, "walking")
    staff_member = Member.objects.create_user(STAFF, "walking", is_staff=True)
    staff_member.user_permissions.add(Permission.objects.get(codename="change_race"))
    root, told = Crawler(ROOT), {}
    if apps.is_installed("durable"):
        from durable.models import OperatorAction, Run

        site = fill()
        at_the_replica: list[str] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            at_the_replica.append(sql)
            return execute(sql, params, many, context)

        with connections["replica"].execute_wrapper(note):
            root.follow(ADMIN, REST, f"{REST}schema")
            missed = ask_every_address(root, site)
        told = {
            "asked": root.asked,
            "missed": missed,
            "events_of_completed": root.events,
            "with_places": root.with_places,
            "without_places": root.without_places,
            "read_at_the_replica": [sql for sql in at_the_replica if '"durable_' in sql],
            "of_users_at_the_replica": len([sql for sql in at_the_replica if 'FROM "intern_member"' in sql]),
            "strangers": OperatorAction.objects.using("default").filter(actor_label=ROOT, actor=None).count(),
            "known": OperatorAction.objects.using("default").filter(actor__email=ROOT).count(),
            "failed": sorted(Run.objects.using("default").filter(state="failed").values_list("pk", flat=True)),
        }
    staff = Crawler(STAFF)
    pages = {f"{who}: {path}": each.get(path) for who, each in (("root", root), ("staff", staff)) for path in OWN}
    told |= {
        "pages": pages,
        "statuses": {path: status for _, path, status in staff.asked},
        "schema": json.loads(root.get("/rest-schema/")),
        "events": [
            {"run": each.get("extra", {}).get("run_id"), "said": each.get("logentry") or each.get("exception")}
            for each in Counting.events
        ],
        "proxied": type(connections["default"].connection).__name__,
    }
    json.dump(told, sys.stdout, default=str)


if __name__ == "__main__":
    main()
