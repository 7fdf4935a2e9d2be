"""Steps that wait for a person, as every surface reads them: the tree, the explanation, lists, causes and findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from durable import Context, Handle, get_run, workflow
from durable.core.errors import ErrorInfo
from durable.core.outcomes import HeldReason
from durable.inspection.causes import cause_of, find_cause, list_causes, spread_of
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.explanation import explain, explain_fully
from durable.inspection.export import exported
from durable.inspection.held import held_by_reason, held_of, held_runs
from durable.inspection.places import GRAVITY
from durable.inspection.runs import RunCriteria, count_runs, list_runs
from durable.inspection.timeline import build_timeline
from durable.inspection.tree import history_tree
from durable.inspection.undone import state_word
from durable.models import EntryMetadata, Failure, OperatorAction, Run
from durable.operations import settle
from tests.faults.passing import pass_once
from tests.inspection.conftest import findings

pytestmark = pytest.mark.django_db

BROKEN: set[str] = set()


class BankError(Exception):
    """The bank has not said what it did."""


def charge(order: int | str, amount: int) -> str:
    if "charge" in BROKEN:
        raise BankError("timeout")
    return f"r{order}:{amount}"


def label() -> str:
    if "label" in BROKEN:
        raise BankError("away")
    return "label"


@workflow(name="tests.held.order")
def order(ctx: Context, number: int | str) -> str:
    ctx.step("pick", str, "x")
    return ctx.step("charge", charge, number, 990, once=True)


@workflow(name="tests.held.parcel")
def parcel(ctx: Context) -> str:
    return ctx.step("label", label, max_retries=0, when_exhausted="hold")


@workflow(name="tests.held.failing")
def failing(ctx: Context) -> str:
    return ctx.step("label", label, max_retries=0)


@workflow(name="tests.held.beside")
def beside(ctx: Context) -> None:
    ctx.join(
        "both",
        {
            "paid": lambda ctx: ctx.step("charge", charge, 1, 2, once=True),
            "slept": lambda ctx: ctx.sleep("s", "1 day"),
        },
    )


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    BROKEN.update({"charge", "label"})
    yield
    BROKEN.clear()


def held(run_id: str, of: Any = order, *args: Any) -> Run:
    """A run whose step is held."""
    handle: Handle[Any] = of.using(id=run_id).start(*(args or ((42,) if of is order else ())))
    pass_once(handle)
    return Run.objects.get(pk=run_id)


def ids(**wanted: Any) -> list[str]:
    return [run.id for run in list_runs(RunCriteria(**wanted)).runs]


class TestTheQuestion:
    def test_it_names_the_attempt_the_worker_and_the_error(self) -> None:
        [step] = held_of(held("a"), with_payloads=True)
        asked = step.question(timezone.now())
        assert asked.startswith("Was it done? charge(42, 990), attempt 1 begun ")
        assert re.search(r", ended \S.* on worker \S+: BankError: timeout$", asked)
        [hidden] = held_of(Run.objects.get(pk="a"))
        assert hidden.question(timezone.now()).startswith("Was it done? charge, attempt 1 begun ")

    def test_a_worker_that_has_died_is_named_with_the_moment(self) -> None:
        run = held("a")
        EntryMetadata.objects.filter(entry__run=run, entry__location="charge").update(
            error=_died(run), last_attempt_at=timezone.now()
        )
        began = run.attempts.get().started_at
        OperatorAction.objects.create(
            run_id="a", action="worker_died", actor_label="vm:12:x", created_at=began, source="code", reason="killed"
        )
        [step] = held_of(run)
        assert ", worker vm:12:x died " in step.question(timezone.now())

    def test_used_up_attempts_ask_something_else(self) -> None:
        [step] = held_of(held("a", parcel))
        assert step.question(timezone.now()).startswith("Its attempts are used up: label, attempt 1 begun ")
        [step] = held_of(Run.objects.get(pk="a"), with_payloads=True)
        assert "label(), attempt 1" in step.question(timezone.now())

    def test_large_arguments_are_not_read(self) -> None:
        [step] = held_of(held("a", order, "x" * 20_000), with_payloads=True)
        assert step.call == "charge(…)"

    def test_a_run_without_a_held_step_has_none(self) -> None:
        BROKEN.clear()
        assert held_of(held("a")) == []


class TestTheHistory:
    def test_the_tree_asks_at_the_step(self) -> None:
        run = held("a")
        nodes = {node.location: node for node in history_tree(run, with_payloads=True).nodes}
        assert nodes["charge"].status == "held"
        assert nodes["charge"].note.startswith("Was it done? charge(42, 990), attempt 1 begun ")
        assert nodes["charge"].needs_attention
        assert nodes["charge"].is_open
        assert "(42, 990)" not in {node.location: node for node in history_tree(run).nodes}["charge"].note

    @pytest.mark.parametrize("status", ["held", "unknown"])
    @pytest.mark.parametrize("state", ["sleeping", "running", "paused", "failed", "completed", "cancelled"])
    def test_no_page_of_a_history_fails_for_it(self, status: str, state: str) -> None:
        run = held("a", beside)
        finished = timezone.now() if state in ("failed", "completed", "cancelled") else None
        EntryMetadata.objects.filter(entry__run=run, status="held").update(status=status)
        run.state, run.finished_at = state, finished
        for only_failed in (False, True):
            nodes = {node.location: node for node in history_tree(run, only_failed=only_failed).nodes}
            assert nodes["both/paid/charge"].status == status
            assert nodes["both/paid"].status == ("held" if status == "held" else "running")
        rows = {row.place: row for row in build_timeline(run, timezone.now()).rows}
        assert rows["both/paid/charge"].status == status
        assert [span.kind for span in rows["both/paid/charge"].spans] == ["failed", "wait"]
        assert explain(run, timezone.now()).headline
        assert explain_fully(run, timezone.now()).headline
        assert read_entry_detail(run, "both/paid/charge", with_payloads=True) is not None

    def test_the_entry_and_the_export_say_why(self) -> None:
        run = held("a")
        detail = read_entry_detail(run, "charge", with_payloads=False)
        assert detail is not None
        facts = dict(detail.facts)
        assert facts["waits for a person"].startswith("nobody knows whether its last attempt was done, since ")
        assert facts["idempotency key"]
        entries = {each["location"]: each for each in exported(run, with_payloads=False)["entries"]}
        assert entries["charge"]["held"]["reason"] == HeldReason.UNKNOWN
        assert "held" not in entries["pick"]

    def test_each_status_has_a_gravity(self) -> None:
        assert set(GRAVITY) >= {status for status, _ in EntryMetadata._meta.get_field("status").choices or ()}


class TestTheExplanation:
    def test_a_held_run_waits_for_a_person_and_is_not_lost(self) -> None:
        run = held("a")
        said = explain_fully(run, timezone.now() + timedelta(hours=3), with_payloads=True)
        assert said.headline.startswith("Waits for a person for 3 h")
        assert said.headline.endswith(': nobody knows whether attempt 1 of "charge" was done')
        assert "Was it done? charge(42, 990), attempt 1 begun " in said.detail
        assert "Settle it: it was done (give its result), it was not (it is tried again), or it fails" in said.detail
        assert (said.location, said.needs_attention, said.remedies[0]) == ("charge", True, "settle")
        brief = explain(run, timezone.now())
        assert brief.headline == 'Step "charge" waits for a person: nobody knows whether attempt 1 was done (BankError)'
        assert brief.needs_attention

    def test_used_up_attempts_are_told_so(self) -> None:
        said = explain_fully(held("a", parcel), timezone.now())
        assert said.headline.endswith(': the attempts of "label" are used up')

    def test_a_run_that_goes_on_beside_it_says_both(self) -> None:
        run = held("a", beside)
        said = explain_fully(run, timezone.now())
        assert said.headline.startswith("Waits for a person for ")
        assert "; goes on " in said.headline
        run.state, run.worker, run.lease_expires_at = "running", "a:1", timezone.now() + timedelta(minutes=1)
        said = explain_fully(run, timezone.now())
        assert said.needs_attention
        assert "nobody knows whether attempt 1" in said.detail

    def test_a_settled_run_is_no_longer_held(self) -> None:
        held("a")
        settle("a", "charge", not_done=True)
        run = Run.objects.get(pk="a")
        assert "person" not in explain_fully(run, timezone.now()).headline
        assert state_word(run) == "sleeping"

    def test_the_word_of_its_state(self) -> None:
        assert state_word(held("a")) == "held"


class TestLists:
    def test_the_filter_finds_open_held_runs_alone(self) -> None:
        held("unknown")
        held("exhausted", parcel)
        held("failed", failing)
        BROKEN.clear()
        held("done")
        assert ids(is_held=True) == ["exhausted", "unknown"]
        assert ids(is_held=True, workflow="tests.held.order") == ["unknown"]
        assert ids(is_held=True, queue="elsewhere") == []
        assert ids(is_held=True, states=frozenset({"sleeping"})) == ["exhausted", "unknown"]
        assert ids(is_held=True, states=frozenset({"failed"})) == []
        assert ids(is_held=True, id_prefix="un") == ["unknown"]
        assert ids(is_held=True, created_from=timezone.now()) == []
        assert str(count_runs(RunCriteria(is_held=True))) == "2"
        assert ids(states=frozenset({"failed"})) == ["failed"]

    def test_a_settled_run_is_out_of_the_list(self) -> None:
        held("a")
        settle("a", "charge", done="by hand")
        assert ids(is_held=True) == ids(needs_attention=True) == []

    def test_held_runs_need_a_person(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held("unknown")
        held("failed", failing)
        held("parcel", parcel)
        for few in (1_000, 0):
            monkeypatch.setattr("durable.inspection.run_lanes.FEW", few)
            assert ids(needs_attention=True) == ["parcel", "failed", "unknown"]
            assert ids(needs_attention=True, states=frozenset({"sleeping"})) == ["parcel", "unknown"]
            assert str(count_runs(RunCriteria(needs_attention=True))) == "3"

    def test_who_may_see_some_runs_sees_these_alone(self) -> None:
        held("mine")
        held("theirs")
        within = Run.objects.filter(pk="mine")
        assert [run.id for run in list_runs(RunCriteria(is_held=True), within=within).runs] == ["mine"]
        assert [each.id for each in held_runs(within)] == ["mine"]
        [cause] = list_causes(timezone.now(), within=within)
        assert (str(cause.count), str(cause.held), cause.newest_run) == ("1", "1", "mine")


class TestCauses:
    def test_a_cause_counts_failed_and_held_runs_and_says_which(self) -> None:
        for number in range(3):
            held(f"held {number}", parcel)
        for number in range(2):
            held(f"failed {number}", failing)
        [cause] = list_causes(timezone.now())
        assert (cause.place, cause.numbers, str(cause.count)) == ("label", "2 failed, 3 held", "5")
        assert sum(number for _name, number in spread_of(cause.fingerprint).workflows) == 5
        found = find_cause(cause.fingerprint, timezone.now())
        assert found is not None
        assert found.numbers == "2 failed, 3 held"

    def test_without_held_runs_only_the_failed_ones_are_told(self) -> None:
        held("a", failing)
        assert [each.numbers for each in list_causes(timezone.now())] == ["1 failed"]

    def test_the_list_of_a_cause_has_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held("held", parcel)
        held("failed", failing)
        [cause] = list_causes(timezone.now())
        for most in (50, 0):
            monkeypatch.setattr("durable.inspection.runs._MOST_CAUSES", most)
            assert sorted(ids(cause=cause.fingerprint)) == ["failed", "held"]
            assert sorted(ids(place="label")) == ["failed", "held"]
            assert sorted(ids(place="label", needs_attention=True)) == ["failed", "held"]
            assert ids(place="label", states=frozenset({"failed"})) == ["failed"]
            assert ids(cause=cause.fingerprint, is_held=True) == ["held"]

    def test_the_cause_of_a_held_run_is_known_until_it_is_settled(self) -> None:
        run = held("a")
        cause = cause_of(run)
        assert cause is not None
        assert [each.fingerprint for each in list_causes(timezone.now())] == [cause.fingerprint]
        settle("a", "charge", done="by hand")
        assert cause_of(Run.objects.get(pk="a")) is None
        assert list_causes(timezone.now()) == []

    def test_a_held_run_that_fails_is_counted_as_failed(self) -> None:
        held("a")
        settle("a", "charge", fail=True)
        pass_once(get_run("a"))
        assert [each.numbers for each in list_causes(timezone.now())] == ["1 failed"]
        assert ids(is_held=True) == []
        assert ids(states=frozenset({"failed"})) == ["a"]


class TestFindings:
    def test_held_runs_are_one_finding_with_their_list(self) -> None:
        held("a")
        held("b", parcel)
        [finding] = findings("held")
        assert (str(finding.count), finding.is_urgent) == ("2", True)
        assert finding.wanted == RunCriteria(is_held=True)
        assert finding.advice.startswith("Of 1 run nobody knows whether its step was done.")
        assert finding.runs == [("a", "tests.held.order"), ("b", "tests.held.parcel")]

    def test_runs_are_counted_by_workflow_and_reason(self) -> None:
        held("a")
        held("b", parcel)
        held("c", failing)
        assert held_by_reason(held_runs()) == {
            ("tests.held.order", "unknown"): 1,
            ("tests.held.parcel", "exhausted"): 1,
        }


class TestTheSweep:
    def test_a_held_run_is_neither_due_nor_claimed(self) -> None:
        run = held("a")
        assert (run.state, run.wake_at, run.waiting_for) == ("sleeping", None, "")
        assert list(Run.objects.due(timezone.now() + timedelta(days=365))) == []
        assert Failure.objects.get(pk="a").is_held


def _died(run: Run) -> Any:
    return ErrorInfo("WorkerDied", 'the worker died during attempt 1 of step "charge"')
