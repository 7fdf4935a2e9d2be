"""Children in lists and on pages: roots first, and every way to what is hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError
from django.test import Client
from django.utils import timezone

import durable.inspection.children as family_of_runs
from durable import get_run, operations
from durable.admin import run_parts
from durable.admin.overview import children_url, lines_of_causes, rows_of_causes
from durable.cli import list_command
from durable.inspection import run_lanes
from durable.inspection.causes import causes_and_lines, list_causes
from durable.inspection.children import FailedChildren, list_children
from durable.inspection.progress import progress_of
from durable.inspection.runs import RunCriteria, list_runs
from durable.inspection.selection import Filtered
from durable.models import Child, Failure, OperatorAction, Run, Schedule, Tick
from durable.operations import Actor, acting_as, bulk
from durable.operations.bulk import ChildrenFirst
from durable.operations.prune import prune
from durable.retention import Policy
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import hidden, listed, printed, rows_of, text_of, traces, url

pytestmark = pytest.mark.django_db

CHILDREN = [f"billing-1:bill {number}" for number in range(4)]


@pytest.fixture
def family(stage: Stage) -> Stage:
    """A parent that has failed because two of its four children did, and a run without either."""
    flows.SWITCH["broken"] = True
    stage.start(flows.quick, id="alone")
    stage.start(flows.billing, 4, id="billing-1")
    for child in CHILDREN:
        stage.settle(child)
    stage.settle("billing-1")
    assert Run.objects.get(pk="billing-1").state == "failed"
    return stage


def ids_of(response: object) -> set[str]:
    return set(rows_of(response))


def test_the_row_and_the_line_of_a_failed_parent_have_one_verb(family: Stage) -> None:
    causes, lines = list_causes(timezone.now()), causes_and_lines(timezone.now(), most=0, lines=10)[1]
    [row] = [row for row in rows_of_causes(causes) if row.newest == "billing-1"]
    [line] = [line for line in lines_of_causes(lines) if line.newest == "billing-1"]
    assert row.verbs == line.verbs
    [verb] = line.verbs
    assert (verb.title, verb.url) == ("Recover it and its failed children", children_url("billing-1"))


def test_the_list_has_roots_and_says_what_it_leaves_out(family: Stage, operator: Client) -> None:
    page = operator.get(url("changelist"))
    assert ids_of(page) == {"alone", "billing-1"}
    assert "4 children match and are not listed." in text_of(page)
    everyone = operator.get(url("changelist") + page.context["with_children_query"])
    assert ids_of(everyone) == {"alone", "billing-1", *CHILDREN}
    assert "not listed" not in text_of(everyone)
    page = operator.get(url("changelist"), {"state": "failed"})
    assert ids_of(page) == {"billing-1"}
    assert "2 children match and are not listed." in text_of(page)
    found = operator.get(url("changelist") + page.context["with_children_query"])
    assert ids_of(found) == {"billing-1", *CHILDREN[1:3]}
    page = operator.get(url("changelist"), {"workflow": "tests.bill", "state": "completed"})
    assert ids_of(page) == set()
    assert "2 children match and are not listed." in text_of(page)


def test_failed_roots_are_listed_behind_any_number_of_failed_children(
    family: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lanes, "WINDOW", 1)  # the children are newer than their parent
    failed = list(Run.objects.filter(state="failed").order_by("-created_at", "-id").values_list("id", flat=True))
    assert failed == [CHILDREN[2], CHILDREN[1], "billing-1"]
    assert ids_of(operator.get(url("changelist"), {"state": "failed"})) == {"billing-1"}
    roots = RunCriteria(states=frozenset({"failed"}), only_roots=True)
    page = list_runs(roots)
    assert ([run.id for run in page.runs], page.next_cursor) == (["billing-1"], None)
    created = Run.objects.get(pk="billing-1").created_at
    assert list_runs(replace(roots, created_from=created + timedelta(microseconds=1))).runs == []
    assert [run.id for run in list_runs(replace(roots, created_from=created)).runs] == ["billing-1"]
    assert list_runs(replace(roots, created_until=created)).runs == []


@pytest.mark.parametrize("order", ["wake_at", "-finished_at"])
def test_in_another_order_the_number_is_that_of_the_list(family: Stage, operator: Client, order: str) -> None:
    page = operator.get(url("changelist"), {"sort": order})
    everyone = operator.get(url("changelist") + page.context["with_children_query"])
    number = len(ids_of(everyone) - ids_of(page))
    assert (f"{number} children match and are not listed." in text_of(page)) == (number > 1)


def test_children_whose_parent_is_deleted_are_failed_roots(family: Stage) -> None:
    assert set(Failure.objects.values_list("run", "parent")) == {
        ("billing-1", None),
        *((child, "billing-1") for child in CHILDREN[1:3]),
    }
    Run.objects.get(pk="billing-1").delete()
    page = list_runs(RunCriteria(states=frozenset({"failed"}), only_roots=True))
    assert {run.id for run in page.runs} == set(CHILDREN[1:3])


def test_a_pruned_parent_leaves_failed_roots(family: Stage) -> None:
    family.advance(minutes=1)
    prune(Policy.older_than(0, states=["failed"], workflow="tests.billing"))
    assert not Run.objects.filter(pk="billing-1").exists()
    assert set(Failure.objects.values_list("run", "parent")) == {(child, None) for child in CHILDREN[1:3]}


def test_without_children_nothing_is_said_of_them(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="alone")
    assert "List them too" not in text_of(operator.get(url("changelist")))
    assert "children" not in text_of(operator.get(url("overview")))


def test_what_looks_for_trouble_or_names_a_run_finds_children(family: Stage, operator: Client) -> None:
    for query in ("?q=billing-1:bill 1", "?attention=1", "?place=charge"):
        assert CHILDREN[1] in listed(operator, query), query
    cause = Failure.objects.select_related("cause").get(run=CHILDREN[1]).cause
    assert set(listed(operator, f"?cause={cause.fingerprint}")) == set(CHILDREN[1:3])


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
    def found(*options: str) -> set[str]:
        return {json.loads(line)["id"] for line in printed("list", "-o", "json", *options).splitlines()}

    assert found() == {"alone", "billing-1"}
    assert found("--children") == {"alone", "billing-1", *CHILDREN}
    assert found("--state", "failed") == {"billing-1"}
    assert CHILDREN[1] in found("--attention")


# -- a run's page


def test_the_page_of_a_parent_has_its_children_by_state_and_names_the_failed_ones(
    family: Stage, operator: Client
) -> None:
    page = operator.get(url("change", "billing-1"))
    text = text_of(page)
    assert [(each["state"], each["number"]) for each in page.context["child_shares"]] == [
        ("completed", "2"),
        ("failed", "2"),
    ]
    assert "<strong>2</strong>" in text
    for child in CHILDREN[1:3]:
        assert f'href="{url("change", child)}"' in text
    assert "Recover the 2 failed children and this run" in text


def test_the_numbers_that_children_take_are_no_pruned_records(family: Stage) -> None:
    assert not progress_of(Run.objects.get(pk="billing-1")).is_pruned
    Child.objects.filter(pk=CHILDREN[0]).delete()
    assert progress_of(Run.objects.get(pk="billing-1")).is_pruned


def test_the_page_of_a_child_has_the_chain_up_to_the_root_and_no_children(family: Stage, operator: Client) -> None:
    page = operator.get(url("change", "alone"))
    assert "durable-children" not in text_of(page)
    assert "children" not in [part.name for part in page.context["parts"]]
    Run.objects.filter(pk="alone").update(parent_id=CHILDREN[0])
    page = operator.get(url("change", "alone"))
    assert [parent.id for parent, _ in page.context["parents"]] == ["billing-1", CHILDREN[0]]
    assert f'href="{url("change", "billing-1")}"' in text_of(page)


def test_children_are_listed_page_by_page_by_state_and_group(family: Stage, operator: Client) -> None:
    Child.objects.filter(run__in=CHILDREN[2:]).update(group="bills")

    for query, children in {
        "": CHILDREN,
        "&state=failed": CHILDREN[1:3],
        "&group=bills": CHILDREN[2:],
        "&group=bills&state=completed": CHILDREN[3:],
        "&state=odd&group=%00": CHILDREN,
    }.items():
        page = operator.get(f"{url('change', 'billing-1')}?part=children{query}")
        shown = [line["row"].run.id for line in page.context["child_rows"]]
        assert (shown, page.context["next_children"]) == (children, ""), query
    assert [(g["name"], g["total"]) for g in operator.get(url("change", "billing-1")).context["child_groups"]] == [
        ("", "2"),
        ("bills", "2"),
    ]
    first = list_children("billing-1", limit=3)
    assert [row.run.id for row in first.rows] == CHILDREN[:3]
    rest = list_children("billing-1", limit=3, after=first.next_key)
    assert ([row.run.id for row in rest.rows], rest.next_key) == (CHILDREN[3:], None)


@pytest.fixture
def with_ties(family: Stage) -> list[str]:
    """The ids of six children of one run, in order.

    The first five have one position, and were stored in another order.
    """
    added = [f"billing-1:bill {number}" for number in ("1~2", "1~1")]
    for run_id in added:
        run = Run.objects.get(pk=CHILDREN[1])
        run.pk = run_id
        run.save(force_insert=True)
        child = Child.objects.get(pk=CHILDREN[1])
        child.run_id = run_id
        child.save(force_insert=True)
    position = Child.objects.get(pk=CHILDREN[1]).position
    Child.objects.filter(run__in=[CHILDREN[2], CHILDREN[0]]).update(position=position)
    return sorted([*CHILDREN[:3], *added]) + CHILDREN[3:]


@pytest.mark.parametrize("chosen", [{}, {"states": ["failed", "completed"]}, {"within": Run.objects.all()}])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_child_is_lost_or_repeated_where_pages_end_among_children_of_one_position(
    with_ties: list[str], monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any], size: int
) -> None:
    for cap in (10_000, size):  # each page in turn ends with its limit, and with what it examines
        monkeypatch.setattr(family_of_runs, "CAP", cap)
        seen: list[str] = []
        after = None
        while True:
            page = list_children("billing-1", after=after, limit=min(size, cap), **chosen)
            seen += [row.run.id for row in page.rows]
            after = page.next_key
            if after is None:
                break
        assert seen == with_ties


def test_the_pages_of_each_surface_and_a_bulk_go_on_behind_the_last_child(
    with_ties: list[str], operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = partial(list_children, limit=2)
    monkeypatch.setattr(run_parts, "list_children", lambda *args, **options: listed(*args, **options))
    query, seen = "?part=children", list[str]()
    while query:
        page = operator.get(url("change", "billing-1") + query)
        seen += [line["row"].run.id for line in page.context["child_rows"]]
        query = page.context["next_children"]
    assert seen == with_ties
    monkeypatch.setattr(list_command, "MOST_LISTED", 2)
    assert printed("children", "billing-1", "-o", "ids").split("\n")[:-1] == with_ties
    failed = FailedChildren("billing-1")
    cursor, chosen = None, list[str]()
    while True:
        ids, cursor = failed.page(cursor, 2)
        chosen += ids
        if cursor is None:
            break
    states = dict(Run.objects.values_list("id", "state"))
    assert chosen == [*(each for each in with_ties if states[each] == "failed"), "billing-1"]
    assert [each.id for each in get_run("billing-1").children()] == with_ties


def test_the_live_part_changes_with_a_child(family: Stage, operator: Client) -> None:
    first = operator.get(url("live", "billing-1"))
    known = {"If-None-Match": first["ETag"]}
    assert operator.get(url("live", "billing-1"), headers=known).status_code == 304
    Run.objects.filter(pk=CHILDREN[1]).update(state="pending", finished_at=None)
    assert operator.get(url("live", "billing-1"), headers=known).status_code == 200


# -- Recover the failed children


def test_failed_children_and_then_their_parent_are_recovered_as_one_bulk(family: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = False
    page = operator.get(operator.get(url("change", "billing-1")).context["recover_children_url"])
    assert "Recover <strong>3</strong> runs: the failed children of billing-1 first" in text_of(page)
    assert page.context["eligibility"].left_alone == (("completed", 2),)
    done = operator.post(url("bulk"), {**hidden(page), "reason": "the bank is back"})
    assert done.status_code == 302, text_of(done, done.status_code)
    [order] = Run.objects.filter(workflow="durable.bulk")
    family.settle(order.id)
    for run_id in [*CHILDREN[1:3], "billing-1"]:
        assert traces(run_id)[0] == ("ada", "recover", "done", "the bank is back"), run_id
        if Run.objects.get(pk=run_id).state != "completed":
            family.settle(run_id)
    states = {run.id: run.state for run in Run.objects.filter(pk__in=[*CHILDREN, "billing-1"])}
    assert set(states.values()) == {"completed"}, states
    assert "failed children of &quot;billing-1&quot;, and then that run if it has failed too" in text_of(
        operator.get(url("bulk_result", order.id))
    )


def test_a_parent_says_what_was_recovered_after_its_end(family: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = False
    assert "recovered after" not in text_of(operator.get(url("change", "billing-1")))
    family.advance(seconds=1)
    for child in CHILDREN[1:3]:
        with acting_as(Actor("cli", label="ops"), reason="the bank\nis back"):
            operations.recover(child)
        family.advance(seconds=1)
    said = "2 of these were recovered after this run had ended, last by ops: the bank is back"
    assert said in text_of(operator.get(url("change", "billing-1")))
    assert "recovered after" not in text_of(operator.get(url("change", CHILDREN[1])))


def test_what_was_recovered_before_the_end_is_not_said(family: Stage, operator: Client) -> None:
    flows.SWITCH["broken"] = False
    with acting_as(Actor("cli", label="ops"), reason="the bank is back"):
        get_run("billing-1").recover_children()
    family.advance(seconds=1)
    for run_id in [*CHILDREN[1:3], "billing-1"]:
        family.settle(run_id)
    assert Run.objects.get(pk="billing-1").state == "completed"
    assert "recovered after" not in text_of(operator.get(url("change", "billing-1")))


def test_related_runs_are_no_children(family: Stage, operator: Client) -> None:
    Run.objects.filter(pk="alone").update(parent="billing-1")  # as if a step had started it
    page = operator.get(url("change", "billing-1"), {"part": "related"})
    assert [each["run"].id for each in page.context["related"]] == ["alone"]
    assert [part.count for part in page.context["parts"] if part.name == "related"] == ["1"]


def test_the_children_of_one_group_may_be_recovered_alone(family: Stage) -> None:
    Child.objects.filter(run=CHILDREN[1]).update(group="bills")
    assert bulk.eligible("recover", FailedChildren("billing-1", "bills")).shown == (CHILDREN[1], "billing-1")
    assert bulk.eligible("recover", FailedChildren("billing-1")).count == 3


def test_without_the_permission_nothing_is_recovered(family: Stage, log_in: Callable[..., Client]) -> None:
    viewer = log_in("view_run", name="eve")
    assert "Recover the 2 failed" not in text_of(viewer.get(url("change", "billing-1")))
    given = {"verb": "recover", "children_of": "billing-1", "confirmed": "1", "reason": "r", "token": "t" * 20}
    assert viewer.get(url("bulk"), given).status_code == 403
    assert viewer.post(url("bulk"), given).status_code == 403
    assert not Run.objects.filter(workflow="durable.bulk").exists()


def test_the_overview_leads_to_the_recovery_of_a_parent_with_its_children(family: Stage, operator: Client) -> None:
    page = operator.get(url("overview"))
    [verb] = [verb for row in page.context["rows"] for verb in row.verbs if "children" in verb.title]
    assert operator.get(verb.url).context["eligibility"].count == 3


# -- the command line, and Python


def test_the_command_line_lists_children_and_shows_children(family: Stage) -> None:
    assert printed("children", "billing-1", "-o", "ids").split("\n")[:-1] == CHILDREN
    assert printed("children", "billing-1", "-s", "failed", "-o", "ids").split("\n")[:-1] == CHILDREN[1:3]
    first = json.loads(printed("children", "billing-1", "-n", "1", "-o", "json"))
    shown = (first["run"]["id"], first["run"]["parent"], first["location"], first["group"])
    assert shown == (CHILDREN[0], "billing-1", "bill 0", None)
    for command in ("children", "show"):
        assert "4: 2 completed, 2 failed" in printed(command, "billing-1")
    assert json.loads(printed("show", "billing-1", "-o", "json"))["children"]["states"] == {"completed": 2, "failed": 2}
    assert json.loads(printed("show", CHILDREN[0], "-o", "json"))["parents"][0]["id"] == "billing-1"
    with pytest.raises(CommandError, match='there is no run "nothing"'):
        printed("children", "nothing")


def test_the_command_line_recovers_failed_children(family: Stage) -> None:
    flows.SWITCH["broken"] = False
    with pytest.raises(CommandError, match="goes with neither"):
        printed("recover", "--group", "bills", "a")
    assert printed("recover", "--children-of", "billing-1", "--dry-run").count("yes, it is failed") == 3
    assert "3 recovered" in printed("recover", "--children-of", "billing-1", "--reason", "the bank is back", "--yes")
    rows = OperatorAction.objects.filter(action="recover").exclude(bulk_id="").order_by("id")
    assert [row.run_id for row in rows] == [*CHILDREN[1:3], "billing-1"]
    for run_id in [*CHILDREN[1:3], "billing-1"]:
        family.settle(run_id)
    assert Run.objects.get(pk="billing-1").state == "completed"


def test_a_handle_recovers_failed_children_and_then_their_parent(family: Stage) -> None:
    flows.SWITCH["broken"] = False
    report = get_run("billing-1").recover_children()
    assert [(each.run_id, each.outcome) for each in report.results] == [
        *((child, "done") for child in CHILDREN[1:3]),
        ("billing-1", "done"),
    ]
    for child in CHILDREN[1:3]:
        family.settle(child)
    assert family.settle("billing-1").state == "completed"


def test_in_the_background_a_parent_comes_after_all_of_its_children(family: Stage) -> None:
    selection = ChildrenFirst(("b", "c", "d"), "a")
    pages, cursor = [], None
    while True:
        ids, cursor = selection.page(cursor, 2)
        pages.append(list(ids))
        if cursor is None:
            break
    assert (pages, selection.total) == ([["b", "c"], ["d"], ["a"]], 4)
    report = bulk.apply("recover", ChildrenFirst(tuple(CHILDREN[1:3]), "billing-1"), in_background=True)
    assert report.run_id is not None
    assert family.settle(report.run_id).state == "completed"
    assert Run.objects.get(pk="billing-1").state != "failed"


def test_a_run_links_to_the_schedule_that_has_started_it(family: Stage, operator: Client) -> None:
    schedule = Schedule.objects.create(name="nightly", workflow="tests.billing", rule="every 6 hours")
    moment = family.now
    Tick.objects.create(
        schedule=schedule, number=1, moment=moment, outcome="started", run_id="alone", decided_at=moment
    )
    assert f'href="{url("schedule", "nightly")}"' in text_of(operator.get(url("change", "alone")))
    assert "nightly" in printed("show", "alone")
    assert json.loads(printed("why", "alone", "-o", "json"))["schedule"]["name"] == "nightly"


# -- what makes no sense is not offered


def test_a_failed_child_of_a_failed_parent_leads_to_the_recovery_of_both(family: Stage, operator: Client) -> None:
    page = operator.get(url("change", CHILDREN[1]))
    assert "stays failed if this run is recovered alone" in text_of(page)
    assert operator.get(page.context["recover_parent_url"]).context["eligibility"].count == 3
    assert "recovered alone" not in text_of(operator.get(url("change", CHILDREN[0])))
    Child.objects.filter(pk=CHILDREN[1]).delete()  # as if a step had started it
    assert "recovered alone" not in text_of(operator.get(url("change", CHILDREN[1])))


def test_a_completed_child_whose_parent_may_read_it_is_not_offered_in_place(stage: Stage, operator: Client) -> None:
    stage.start(flows.billing, 2, id="billing-1")
    stage.settle(CHILDREN[0])
    page = text_of(operator.get(url("replay", CHILDREN[0]), {"at": "charge"}))
    assert "In place it cannot be done" in page
    assert 'name="in_place"' not in page
    stage.settle(CHILDREN[1])
    stage.settle("billing-1")
    assert 'name="in_place"' in text_of(operator.get(url("replay", CHILDREN[0]), {"at": "charge"}))
