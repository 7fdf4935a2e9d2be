"""What the toolbar's panel shows of a request: its verbs, their transactions, their time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The panel by the address of a page."""
    database = tmp_path_factory.mktemp("toolbar") / "db.sqlite3"  # a file: the page by ASGI has a thread of its own
    done = subprocess.run(
        [sys.executable, "-m", "tests.contrib.toolbar"],
        cwd=ROOT,
        env={"DATABASE_URL": f"sqlite:///{database}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def lines(panel: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """These columns of each line."""
    return [tuple(line[name] for name in names) for line in panel["lines"]]


@pytest.mark.slow
def test_each_verb_is_a_line_with_what_became_of_its_transaction(panels: dict[str, dict[str, Any]]) -> None:
    """The start and the send inside `start_or_send` are no lines of their own."""
    assert lines(panels["/kinds/"], "verb", "about", "transaction") == [
        ("start", "toolbar.waiting", "autocommit"),
        ("send", "word", "atomic, committed"),
        ("start", "toolbar.waiting", "atomic, rolled back"),
        ("start", "toolbar.waiting", "atomic, rolled back"),  # to a savepoint
        ("pause", "", "atomic, committed"),
        ("restart", "", "autocommit"),
        ("start_or_send", "toolbar.waiting", "autocommit"),
        ("cancel", "", "autocommit"),
    ]


@pytest.mark.slow
def test_a_line_leads_to_its_runs(panels: dict[str, dict[str, Any]]) -> None:
    assert panels["/kinds/"]["lines"][1]["runs"] == [{"id": "plain", "path": "/admin/durable/run/plain/change/"}]
    [many] = panels["/many/"]["lines"]
    assert (many["verb"], len(many["runs"]), many["more_runs"]) == ("start", 20, 5)
    assert "and 5 more" in panels["/many/"]["html"]


def test_a_verb_that_was_refused_says_why(panels: dict[str, dict[str, Any]]) -> None:
    *others, last = (line["error"] for line in panels["/kinds/"]["lines"])
    assert last.startswith('RunNotFoundError: there is no run "nobody"')
    assert set(others) == {""}


def test_a_transaction_around_the_request_is_waited_for(panels: dict[str, dict[str, Any]]) -> None:
    assert lines(panels["/unfinished/"], "verb", "transaction") == [("start", "atomic, waits for the commit")]


def test_a_request_by_asgi_has_its_verbs(panels: dict[str, dict[str, Any]]) -> None:
    [line] = panels["/loop/"]["lines"]
    assert (line["verb"], [each["id"] for each in line["runs"]]) == ("start", ["asynchronous"])


def test_the_time_is_measured_and_summed_in_the_side_bar(panels: dict[str, dict[str, Any]]) -> None:
    panel = panels["/kinds/"]
    [(count, time)] = re.findall(r"(\d+) verbs in ([\d.]+) ms", panel["side"])
    assert int(count) == 8
    assert all(line["milliseconds"] > 0 for line in panel["lines"])
    assert float(time) == pytest.approx(sum(line["milliseconds"] for line in panel["lines"]), abs=0.01)


def test_a_request_without_verbs_says_so(panels: dict[str, dict[str, Any]]) -> None:
    assert panels["/nothing/"]["lines"] == []
    assert "This request has called no verb of durable." in panels["/nothing/"]["html"]


def test_no_panel_has_a_payload(panels: dict[str, dict[str, Any]]) -> None:
    assert "secret" not in json.dumps(panels)
