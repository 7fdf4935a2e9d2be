"""Children in lists and on pages: roots first, and every way to what is hidden."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.test import Client

from durable.inspection import Filtered, RunCriteria, list_runs
from durable.models import Failure, Run
from durable.operations import bulk
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url

pytestmark = pytest.mark.django_db

CHILDREN = [f"billing-1:bill {number}" for number in range(4)]


@pytest.fixture
def family(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A parent that has failed because two of its four children did, and a run without either."""
    monkeypatch.setitem(flows.SWITCH, "broken", True)
    stage.start(flows.quick, id="alone")
    stage.start(flows.billing, 4, id="billing-1")
    for child in CHILDREN:
        stage.settle(child)
    stage.settle("billing-1")
    assert Run.objects.get(pk="billing-1").state == "failed"
    return stage


def ids_of(response: object) -> set[str]:
    return {row.run.id for row in response.context["rows"]}  # type: ignore[attr-defined]  # of Django's test client


def test_the_list_has_roots_and_says_what_it_leaves_out(family: Stage, operator: Client) -> None:
    page = operator.get(url("changelist"))
    assert ids_of(page) == {"alone", "billing-1"}
    assert "4 children match and are not listed." in text_of(page)
    everyone = operator.get(url("changelist") + page.context["with_children_query"])
    assert ids_of(everyone) == {"alone", "billing-1", *CHILDREN}
    assert "not listed" not in text_of(everyone)


def test_a_list_of_failed_runs_leads_to_failed_children(family: Stage, operator: Client) -> None:
    page = operator.get(url("changelist"), {"state": "failed"})
    assert ids_of(page) == {"billing-1"}
    assert "2 children match and are not listed." in text_of(page)
    found = operator.get(url("changelist") + page.context["with_children_query"])
    assert ids_of(found) == {"billing-1", *CHILDREN[1:3]}


def test_where_only_children_match_the_page_says_so(family: Stage, operator: Client) -> None:
    page = operator.get(url("changelist"), {"workflow": "tests.bill", "state": "completed"})
    assert ids_of(page) == set()
    assert "2 children match and are not listed." in text_of(page)


def test_without_children_nothing_is_said_of_them(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="alone")
    assert "List them too" not in text_of(operator.get(url("changelist")))
    assert "children" not in text_of(operator.get(url("overview")))


@pytest.mark.parametrize("query", ["?q=billing-1:bill 1", "?attention=1", "?place=charge"])
def test_what_looks_for_trouble_or_names_a_run_finds_children(family: Stage, operator: Client, query: str) -> None:
    assert CHILDREN[1] in ids_of(operator.get(url("changelist") + query))


def test_the_list_of_a_cause_has_its_children(family: Stage, operator: Client) -> None:
    cause = Failure.objects.select_related("cause").get(run=CHILDREN[1]).cause
    assert ids_of(operator.get(url("changelist"), {"cause": cause.fingerprint})) == set(CHILDREN[1:3])


def test_the_counts_of_the_overview_lead_to_lists_with_as_many_runs(family: Stage, operator: Client) -> None:
    page = operator.get(url("overview"))
    assert "Roots and children are counted." in text_of(page)
    [(count, query)] = [(count, query) for state, count, query in page.context["states"] if state == "failed"]
    assert count.number == len(ids_of(operator.get(url("changelist") + query))) == 3


def test_a_bulk_of_a_list_has_the_runs_that_the_list_has(family: Stage) -> None:
    roots = RunCriteria(states=frozenset({"failed"}), only_roots=True)
    assert bulk.eligible("recover", Filtered(roots)).count == 1
    assert bulk.eligible("recover", Filtered(RunCriteria(states=frozenset({"failed"})))).count == 3


def test_all_roots_are_no_limit_for_a_grave_verb(family: Stage) -> None:
    with pytest.raises(ValueError, match="cannot be taken back"):
        bulk.apply("cancel", Filtered(RunCriteria(only_roots=True)))


def test_a_run_that_a_step_has_started_is_a_root(stage: Stage) -> None:
    stage.start(flows.billing, 1, id="billing-1")
    Run.objects.create(id="started", workflow="w", queue="q", input="[]", created_at=stage.now, parent_id="billing-1")
    assert {run.id for run in list_runs(RunCriteria(only_roots=True)).runs} == {"billing-1", "started"}


def test_the_command_line_lists_roots_or_everyone(family: Stage) -> None:
    def listed(*options: str) -> set[str]:
        out = io.StringIO()
        call_command("durable", "list", "-o", "json", *options, stdout=out)
        return {json.loads(line)["id"] for line in out.getvalue().splitlines()}

    assert listed() == {"alone", "billing-1"}
    assert listed("--children") == {"alone", "billing-1", *CHILDREN}
    assert listed("--state", "failed") == {"billing-1"}
    assert CHILDREN[1] in listed("--attention")
