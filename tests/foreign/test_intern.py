"""A project with all at once that others have, walked through by a crawler: durable works there, and changes nothing.

The project, and the program that walks, are in `tests/foreign/intern/`.
"""

from __future__ import annotations

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
#: Answers that nothing is there: a stack that nobody has asked for, and an address that is none.
NOTHING = {"/intern/durable/runs/a/stack?location=rest", "/intern/durable/nowhere"}
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


@pytest.fixture(scope="module")
def walked(postgres_server: EmbeddedPostgres) -> Walk:
    return walk(postgres_server.create_database("intern"))


@pytest.fixture(scope="module")
def alone(postgres_server: EmbeddedPostgres) -> Walk:
    """The same project without durable."""
    return walk(postgres_server.create_database("intern_alone"), WITHOUT_DURABLE="1")


def test_no_address_fails(walked: Walk) -> None:
    failing = [each for each in walked["asked"] if each[2] >= 500]
    assert not failing, failing
    assert walked["proxied"] == "WatchedConnection"


def test_every_address_of_durable_is_asked_and_answers(walked: Walk) -> None:
    assert walked["missed"] == ELSEWHERE
    asked = [(path, status) for method, path, status in walked["asked"] if method == "get" and "logout" not in path]
    assert {path for path, status in asked if status not in (200, 302)} == NOTHING
    assert len(asked) > 300


def test_the_events_of_a_run_arrive(walked: Walk) -> None:
    assert walked["events_of_completed"][-1] == "end"


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


def test_the_project_s_own_pages_stay_as_they_are(walked: Walk, alone: Walk) -> None:
    assert walked["statuses"] == alone["statuses"]
    assert walked["pages"].keys() == alone["pages"].keys()
    for page, text in alone["pages"].items():
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
    assert {name for name in ours if not name.startswith("Durable") and not name.endswith("Enum")} == set()
