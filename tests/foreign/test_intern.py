"""A project with all at once that others have, walked through by a crawler: durable works there, and changes nothing.

The project, and the program that walks, are in `tests/foreign/intern/`. It is walked through as it is, and with each of
the things that its settings can have beside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from project.servers import EmbeddedPostgres
from tests.foreign.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

#: Django's own pages that lead to durable's, and what would edit the audit log.
ELSEWHERE = [
    *("admin:app_list", "admin:durable_operatoraction_add", "admin:durable_operatoraction_delete", "admin:index"),
]
#: Answers that nothing is there: a stack that nobody has asked for, a question and an address that are none, and a step
#: that emits nothing.
NOTHING = {
    "/intern/durable/runs/a/stack?location=rest",
    "/intern/durable/questions/0000000000000000",
    "/intern/durable/nowhere",
    "/intern/verwaltung/durable/run/run/stream/?at=charge",
}
#: What differs from one process to another.
SECRETS = re.compile(r'name="csrfmiddlewaretoken" value="\w+"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
OURS = re.compile(r'<div class="app-durable module.*?</table>\s*</div>', re.DOTALL)

Walk = Mapping[str, Any]


def walk(database: str, **more: str) -> Walk:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.foreign.intern.crawl"],
        cwd=ROOT,
        env={
            "DATABASE_URL": database,
            "DJANGO_SETTINGS_MODULE": "tests.foreign.intern.settings",
            "PATH": os.environ["PATH"],
            "PYTHONHASHSEED": "0",  # a theme has classes of CSS in sets
            **more,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Walk = json.loads(done.stdout)
    return found


#: What the environment says in each walk, and the package without which it is skipped.
WALKS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "as it is": ({}, "durable"),
    "below a path": ({"MOUNTED_AT": "/races"}, "durable"),
    "ASGI": ({"SERVED_BY": "asgi", "MOUNTED_AT": "/races"}, "uvicorn"),
    "Unfold": ({"ADMIN_THEME": "unfold"}, "unfold"),
    "Jazzmin": ({"ADMIN_THEME": "jazzmin"}, "jazzmin"),
    "ddtrace": ({"AGENT": "ddtrace"}, "ddtrace"),
}


@pytest.fixture(scope="module", params=WALKS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if importlib.util.find_spec(WALKS[name][1]) is None:
        pytest.skip(f"{WALKS[name][1]} is not installed; .ci/run tries it")
    return name


@pytest.fixture(scope="module")
def walked(postgres_server: EmbeddedPostgres, way: str) -> Walk:
    number = list(WALKS).index(way)
    return walk(postgres_server.create_database(f"intern_{number}"), **WALKS[way][0])


@pytest.fixture(scope="module")
def alone(postgres_server: EmbeddedPostgres, way: str) -> Walk:
    """The same project without durable."""
    number = list(WALKS).index(way)
    return walk(postgres_server.create_database(f"intern_alone_{number}"), **WALKS[way][0], WITHOUT_DURABLE="1")


def test_no_address_fails(walked: Walk, way: str) -> None:
    failing = [each for each in walked["asked"] if each[2] >= 500]
    assert not failing, failing
    assert (walked["proxied"] == "WatchedConnection") is (way != "ddtrace")
    assert walked["proxied"] != "Connection", "no proxy stands there"


def test_every_address_that_an_answer_has_is_below_the_path_of_the_project(walked: Walk) -> None:
    assert walked["outside"] == []


def test_every_address_of_durable_is_asked_and_answers(walked: Walk) -> None:
    assert walked["missed"] == ELSEWHERE
    asked = [(path, status) for method, path, status in walked["asked"] if method == "get" and "logout" not in path]
    assert {path for path, status in asked if status not in (200, 302)} == NOTHING
    assert len(asked) > 300


def test_the_events_of_a_run_arrive(walked: Walk, way: str) -> None:
    assert walked["streams"]["of_completed"][-1] == "end"
    assert walked["streams"]["while_open"][-1] == ("end" if way == "ASGI" else "run")
    assert walked["streams"]["status_after"] == 200


def test_each_page_of_durable_leads_to_the_others(walked: Walk) -> None:
    assert walked["without_places"] == []
    assert walked["with_places"] > 100


def test_own_rows_are_read_where_they_are_written(walked: Walk) -> None:
    assert walked["read_at_the_replica"] == []
    assert walked["of_users_at_the_replica"] > 0


def test_the_log_knows_a_user_who_was_read_from_the_replica(walked: Walk) -> None:
    assert walked["known"] > 10
    assert walked["strangers"] == 0


def test_only_failed_runs_are_reported(walked: Walk) -> None:
    assert [each["run"] for each in walked["events"] if each["run"] is None] == [], walked["events"]
    assert sorted(each["run"] for each in walked["events"]) == walked["failed"]
    assert len(walked["failed"]) == 4


def test_the_project_s_own_pages_stay_as_they_are(walked: Walk, alone: Walk, way: str) -> None:
    """Who may see durable has it in the list of apps, which a theme shows in its own way on each page."""
    assert walked["statuses"] == alone["statuses"]
    assert walked["pages"].keys() == alone["pages"].keys()
    for page, text in alone["pages"].items():
        if page.startswith("staff: ") or "ADMIN_THEME" not in WALKS[way][0]:
            assert plain(walked["pages"][page]) == plain(text), page
    assert "Verwaltung" in alone["pages"]["staff: /intern/verwaltung/"]
    assert "Marathon" in alone["pages"]["staff: /intern/verwaltung/intern/race/1/change/"]


def plain(page: str) -> str:
    """A page without what differs in each process, and without durable in the list of apps."""
    return re.sub(r"\s+", " ", OURS.sub("", SECRETS.sub("", page)))


def test_the_project_s_own_components_and_paths_stay_as_they_are(walked: Walk, alone: Walk) -> None:
    both, own = walked["schema"], alone["schema"]
    components = both["components"]["schemas"]
    assert {name: components.get(name) for name in own["components"]["schemas"]} == own["components"]["schemas"]
    assert {path: both["paths"].get(path) for path in own["paths"]} == own["paths"]
    ours = components.keys() - own["components"]["schemas"].keys()
    assert "DurableRun" in ours
    assert {name for name in ours if not name.startswith("Durable")} == set()
