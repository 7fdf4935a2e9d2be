"""The read side under the pages: what needs a person, how failures are grouped, trees, times, payloads."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pytest_django import DjangoAssertNumQueries, Settings
from rq import Worker

from durable import get_run, operations, runtime
from durable.core.errors import ErrorInfo
from durable.core.places import Place
from durable.core.records import Request
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.inspection import humanize as w
from durable.inspection.causes import failed_runs, list_causes
from durable.inspection.counting import Count
from durable.inspection.entry_detail import read_entry_detail
from durable.inspection.export import exported
from durable.inspection.findings import Finding, collect_findings
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.payloads import jsonable, payload, pretty
from durable.inspection.progress import progress_of
from durable.inspection.runs import RunCriteria, list_runs
from durable.inspection.selection import Filtered
from durable.inspection.tree import history_tree
from durable.inspection.workers import worker_overview
from durable.inspection.workflows import annotations_of, count_by_state, last_hour_and_day
from durable.models import Build, Run
from durable.notifier import redis_clients, registry
from durable.operations import bulk
from durable.operations.audit import Actor, acting_as
from durable.operations.bulk_decisions import go_on
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.support.rollups import settle

if TYPE_CHECKING:
    import redis

NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)


class TestWords:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0 s"),
            (0.42, "0.4 s"),
            (0.0494, "49 ms"),
            (0.0001, "1 ms"),
            (9.96, "10.0 s"),
            (12, "12 s"),
            (360, "6 m"),
            (3_725, "1 h 2 m"),
            (90_061, "1 d 1 h"),
        ],
    )
    def test_spans(self, seconds: float, text: str) -> None:
        assert w.span(seconds) in {text, text.replace(".0", "")}

    def test_moments_name_the_day_only_where_it_is_another(self) -> None:
        assert w.moment(NOW + timedelta(hours=2), NOW) == "14:00:00 UTC"
        assert w.until(NOW + timedelta(days=1, hours=2), NOW) == "2 Sep 14:00 UTC, in 1 d 2 h"
        assert w.moment(NOW + timedelta(days=365), NOW) == "1 Sep 2027 12:00 UTC"

    def test_a_text_is_cut_between_words(self) -> None:
        assert w.shortened("one two\nthree", 12) == "one two…"
        assert w.shortened("one two three", 8) == "one two…"
        assert w.shortened("x" * 100, 50) == "x" * 49 + "…"

    def test_lists(self) -> None:
        told = [w.either(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])]
        assert told == ["", "a", "a or b", "a, b or c"]
        assert w.either(list("abcdefg")).endswith("or 2 more")


def kinds(stage: Stage) -> dict[str, Any]:
    return {finding.kind: finding for finding in collect_findings(stage.now, worker_overview())}


class TestWhatNeedsAPerson:
    pytestmark = pytest.mark.redis

    @pytest.fixture(autouse=True)
    def _served(self, redis_connection: "redis.Redis") -> Iterator[None]:
        """A worker that serves both queues, as far as Redis knows."""
        worker = Worker(["default", "high"], connection=redis_clients.client("default"), name="somebody")
        worker.register_birth()  # type: ignore[no-untyped-call]  # RQ's own
        yield
        worker.register_death()  # type: ignore[no-untyped-call]  # RQ's own

    def test_nothing_while_all_goes_well(self, stage: Stage) -> None:
        stage.start(flows.approve, id="waits")
        stage.start(flows.quick, id="done")
        assert kinds(stage) == {}

    def test_each_cause_is_a_finding_of_its_own(self, stage: Stage) -> None:
        flows.SWITCH.update(broken=True, rollback_broken=True)
        stage.start(flows.switched, id="exhausted")
        stage.start(flows.saga, id="stuck")
        stage.start(flows.quick, id="unclaimed", settle=False)
        stage.start(flows.quick, id="held", settle=False)
        stage.claim("held")
        stage.start(flows.approve, id="overdue")
        Run.objects.filter(pk="overdue").update(wake_at=stage.now)
        diverged = {"diverged_at": stage.now, "state": "sleeping", "wake_at": stage.now + timedelta(hours=1)}
        stage.start(flows.approve, id="diverging")
        Run.objects.filter(pk="diverging").update(**diverged)
        stage.start(flows.switched, id="diverged")
        Run.objects.filter(pk="diverged").update(error=ErrorInfo("HistoryDivergedError", "no"))
        stage.advance(minutes=3)
        found = collect_findings(stage.now, worker_overview())
        assert sorted((finding.kind, sorted(run for run, _ in finding.runs)) for finding in found) == [
            ("diverged", ["diverged"]),
            ("diverged", ["diverging"]),
            ("exhausted", ["exhausted"]),
            ("rollback_failed", ["stuck"]),
            ("stale_lease", ["held"]),
            ("unclaimed", ["held", "unclaimed"]),
            ("wait_overdue", ["overdue"]),
        ]
        assert all(finding.advice for finding in found)

    def test_a_finding_says_since_when_of_which_workflows_and_where_its_runs_are_listed(self, stage: Stage) -> None:
        due_at = stage.now
        for number in range(7):
            stage.start(flows.quick, id=f"unclaimed-{number}", settle=False)
        stage.start(flows.approve, id="another", settle=False)
        stage.start(flows.approve, id="diverging")
        Run.objects.filter(pk="diverging").update(diverged_at=stage.now, wake_at=stage.now + timedelta(hours=1))
        stage.advance(minutes=3)
        found = kinds(stage)
        unclaimed = found["unclaimed"]
        assert unclaimed.workflows == [("tests.quick", 7), ("tests.approve", 1)]
        assert abs(unclaimed.since - due_at) < timedelta(seconds=1)
        ids = {"another", "diverging", *(f"unclaimed-{number}" for number in range(7))}
        assert {run.id for run in list_runs(unclaimed.wanted).runs} == ids
        assert unclaimed.command == "python manage.py durable_worker"
        assert [run.id for run in list_runs(found["diverged"].wanted).runs] == ["diverging"]

    def test_a_run_that_was_cancelled_while_no_code_fitted_is_no_finding(self, stage: Stage) -> None:
        stage.start(flows.approve, id="stranger")
        Run.objects.filter(pk="stranger").update(workflow="tests.nowhere", wake_at=stage.now)
        diverging = stage.run("stranger")
        assert diverging.diverged_at is not None
        assert kinds(stage)["diverged"].runs == [("stranger", "tests.nowhere")]
        operations.cancel("stranger")
        assert Run.objects.get(pk="stranger").diverged_at is None
        assert kinds(stage) == {}
        Run.objects.filter(pk="stranger").update(diverged_at=stage.now)  # as earlier releases left it
        assert kinds(stage) == {}

    def test_a_run_that_was_cancelled_while_a_worker_held_it_is_no_finding(self, stage: Stage) -> None:
        stage.start(flows.nap, id="held")
        Run.objects.filter(pk="held").update(diverged_at=stage.now, wake_at=stage.now)
        record = stage.claim("held")
        assert record.diverged_at is not None
        operations.cancel("held")
        record.pending_request = Request.CANCEL  # as the supervisor reads it from the row
        execute_pass(record, store=runtime.current().store, eviction=Eviction())
        ended = Run.objects.get(pk="held")
        assert (ended.state, ended.diverged_at) == ("cancelled", None)
        assert kinds(stage) == {}

    def test_a_queue_without_a_worker(self, stage: Stage, redis_connection: "redis.Redis") -> None:
        redis_connection.flushdb()

        def found() -> list[Finding]:  # other queues have workflows of other modules
            every = collect_findings(stage.now, worker_overview())
            return [each for each in every if each.kind == "no_worker" and '"default"' in each.title]

        assert [each.is_urgent for each in found()] == [False]  # no run wants it yet
        assert "Start one: " in found()[0].advice
        stage.start(flows.quick, id="due", settle=False)
        stage.advance(minutes=1)
        [finding] = found()
        assert (finding.is_urgent, finding.count.number) == (True, 1)
        assert "Move its runs to another queue, or start one: " in finding.advice
        assert finding.command == "python manage.py durable_worker default"
        assert stage.now - finding.since == pytest.approx(timedelta(minutes=1), abs=timedelta(seconds=1))  # type: ignore[operator]

    def test_due_runs_of_a_queue_without_a_worker_are_one_finding(
        self, stage: Stage, redis_connection: "redis.Redis"
    ) -> None:
        redis_connection.flushdb()
        stage.start(flows.quick, id="due", settle=False)
        stage.start(flows.quick, id="lost", settle=False)
        Run.objects.filter(pk="lost").update(queue="nowhere")
        stage.advance(minutes=3)
        found = [each.kind for each in collect_findings(stage.now, worker_overview()) if each.is_urgent]
        assert sorted(found) == ["no_worker", "unknown_queue"]

    def test_a_queue_that_rq_does_not_know(self, stage: Stage) -> None:
        stage.start(flows.quick, id="lost", settle=False)
        Run.objects.filter(pk="lost").update(queue="nowhere")
        found = kinds(stage)["unknown_queue"]
        assert 'RQ_QUEUES lacks the queue "nowhere"' in found.title
        assert "or move its runs to another queue" in found.advice

    def test_redis_that_does_not_answer(self, stage: Stage, settings: Settings) -> None:
        away = {"URL": "redis://127.0.0.1:1/0", "SERIALIZER": "rq.serializers.JSONSerializer"}
        settings.RQ_QUEUES = {"default": away, "high": away}
        found = kinds(stage)
        assert set(found) == {"redis"}
        assert "RQ_QUEUES" in found["redis"].advice

    def test_workers_are_shown_with_what_they_run(self, stage: Stage) -> None:
        stage.start(flows.quick, id="held", settle=False)
        stage.claim("held")
        workers = worker_overview().workers
        assert [each.queues for each in workers if each.state != "unknown"] == [("default", "high")]
        [stranger] = [each for each in workers if each.state == "unknown"]  # held by a process that Redis does not know
        assert (stranger.host, stranger.pid, [run.id for run in stranger.runs]) == ("host", 4711, ["held"])


def test_failures_of_one_cause_are_one_group(stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    for number in range(3):
        stage.start(flows.switched, number, id=f"failed-{number}")
        stage.advance(minutes=1)
    stage.start(flows.saga, id="other")
    small, big = list_causes(stage.now)
    assert (big.workflows, big.place, big.error_type) == (["tests.switched"], "charge", "GatewayTimeout")
    assert (big.count.number, big.newest_run, big.pattern) == (3, "failed-2", "no answer for #")
    assert (small.error_type, small.count.number) == ("CriticalError", 1)


@pytest.mark.parametrize("message", ["x" * 1_000, "\\" * 500, '"' * 500, "é🎉" * 200, "", "a\x00b", "\ud800", "a\nb"])
def test_an_error_that_is_cut_off_is_still_read(stage: Stage, message: str) -> None:
    stage.start(flows.approve, id="failed")
    get_run("failed").cancel()
    Run.objects.filter(pk="failed").update(state="failed", error=ErrorInfo('Odd"Error', message, "T" * 1_000))
    [found] = failed_runs()
    assert found.error_type == 'Odd"Error'
    assert w.printable(message).startswith(found.message)
    assert len(found.message) >= min(len(message), 20)


def test_counts_stop_at_their_cap(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    from durable.inspection import workflows

    for number in range(4):
        stage.start(flows.quick, id=f"run-{number}")
    stage.start(flows.approve, id="waits")
    counted = {state: str(count) for state, count in count_by_state().items() if count}
    assert counted == {"completed": "4", "sleeping": "1"}
    monkeypatch.setattr(workflows, "STATE_CAP", 3)
    assert count_by_state()["completed"] == Count(number=3, is_capped=True)
    assert str(count_by_state()["completed"]) == "3+"
    mine = Run.objects.filter(id__in=["run-1"])
    assert count_by_state(mine)["completed"] == Count(number=1)


def test_throughput_tells_of_what_ended(stage: Stage, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(3):
        run = stage.start(flows.approve, id=f"run-{number}")
        stage.advance(minutes=10)
        get_run(run.id).send("approved")
        stage.settle(run.id)
    get_run(stage.start(flows.approve, id="cancelled").id).cancel()
    stage.advance(minutes=2)
    assert last_hour_and_day(stage.now)[0].until is None
    settle(stage.now)
    with django_assert_num_queries(2):
        hour = last_hour_and_day(stage.now)[0]
    assert (hour.completed, hour.failed, hour.cancelled, hour.total) == (3, 0, 1, 4)
    assert (len(hour.bars), hour.begins) == (30, hour.end - timedelta(hours=1))
    assert hour.until is not None
    assert hour.end - timedelta(minutes=5) < hour.until <= hour.end
    assert hour.median == pytest.approx(600, rel=0.1)
    assert next(bar.slow for bar in hour.bars if bar.completed and not bar.cancelled) == pytest.approx(600, rel=0.1)
    assert {bar.median for bar in hour.bars if not bar.total} == {None}
    assert (last_hour_and_day(stage.now)[1].total, len(last_hour_and_day(stage.now)[1].bars)) == (4, 48)
    assert last_hour_and_day(stage.now, "tests.approve")[1].completed == 3
    assert last_hour_and_day(stage.now, "tests.quick")[1].total == 0
    assert last_hour_and_day(stage.now + timedelta(hours=2))[0].total == 0


def test_deploys_and_bulks_are_marked_in_their_time(stage: Stage) -> None:
    Build.objects.create(name="7f3a", first_seen_at=stage.now - timedelta(minutes=30))
    Build.objects.create(name="old", first_seen_at=stage.now - timedelta(hours=5))
    stage.start(flows.approve, id="run")
    with acting_as(Actor("cli", label="ada")):
        operations.pause("run")  # alone: no mark
        bulk.apply("resume", ["run"])
    found = annotations_of(last_hour_and_day(stage.now)[0])
    assert [(each.kind, each.title) for each in found] == [("deploy", "7f3a"), ("bulk", "resume 1 run")]
    assert [each.title for each in annotations_of(last_hour_and_day(stage.now)[1])][:2] == ["old", "7f3a"]


def test_a_verb_on_a_bulk_is_a_mark_with_words(stage: Stage) -> None:
    flows.SWITCH["broken"] = True
    failed = [stage.start(flows.switched, id=name).pk for name in ("first", "second")]
    with acting_as(Actor("cli", label="ada")):
        bulk.apply("recover", failed, as_id="many", canary=bulk.Canary(first=1))
        stage.run("many")
        stage.settle(Run.objects.get(pk__in=failed, state="pending").pk)
        stage.advance(seconds=30)
        stage.run("many")
        go_on("many")
    assert [each.title for each in annotations_of(last_hour_and_day(stage.now)[0])] == ["recover 2 runs", "go on"]


class TestTheTree:
    def test_scopes_branches_and_iterations(self, stage: Stage) -> None:
        stage.start(flows.branches, id="run")
        page = history_tree(Run.objects.get(pk="run"))
        ship, fastest, careful = page.roots
        assert [(each.title, each.kind) for each in ship.children] == [("label", "branch"), ("mail", "branch")]
        assert [(each.title, each.is_winner, each.status) for each in fastest.children] == [
            ("fast", True, "completed"),
            ("slow", False, "cancelled"),
        ]
        assert (careful.kind, [each.kind for each in careful.children]) == ("block", ["step"])

    def test_a_step_whose_rollback_handler_failed_is_marked(self, stage: Stage) -> None:
        flows.SWITCH["rollback_broken"] = True
        stage.start(flows.saga, id="run")
        [kept] = history_tree(Run.objects.get(pk="run"), only_failed=True).nodes
        assert (kept.location, kept.status, kept.note) == ("charge", "completed", "compensation failed")
        flows.SWITCH["rollback_broken"] = False
        get_run("run").recover()
        stage.settle("run")
        assert [node.note for node in history_tree(Run.objects.get(pk="run")).nodes] == ["", ""]

    def test_a_wait_without_a_message_says_how_it_ended(self, stage: Stage) -> None:
        stage.start(flows.approve, id="late")
        wait = history_tree(Run.objects.get(pk="late")).nodes[-1]
        assert (wait.location, wait.status, wait.note) == ("approval", "pending", "")
        stage.advance(days=3)
        late = stage.settle("late")
        wait = history_tree(Run.objects.get(pk="late")).nodes[-1]
        assert (wait.location, wait.status, wait.note) == ("approval", "completed", "timed out")
        detail = read_entry_detail(late, "approval", with_payloads=True)
        assert detail is not None
        assert ("received", "timed out") in detail.facts
        stage.start(flows.polls, id="polls")
        assert history_tree(Run.objects.get(pk="polls")).nodes[-1].note == "no message was there"
        stage.start(flows.approve, id="asked")
        get_run("asked").send("approved")
        stage.settle("asked")
        assert history_tree(Run.objects.get(pk="asked")).nodes[-1].note == ""

    def test_iterations_are_counted_and_pruned_ones_are_said(self, stage: Stage) -> None:
        stage.start(flows.looping, 12, id="run")
        [loop] = history_tree(Run.objects.get(pk="run")).roots
        assert [each.title for each in loop.children][-1] == "iteration 11"
        assert loop.note.startswith("12 iterations; the records of iterations 0 to 6 are pruned")

    def test_pages_cover_everything_once(self, stage: Stage) -> None:
        stage.start(flows.many, 25, id="run")
        seen, start = [], 0
        while start is not None:
            page = history_tree(Run.objects.get(pk="run"), start=start, size=10)
            seen += [node.location for node in page.nodes]
            assert page.total == 25
            start = page.next_start  # type: ignore[assignment]  # None ends the loop
        assert seen == [f"step {n}" for n in range(25)]
        assert history_tree(Run.objects.get(pk="run"), start=10_000, size=10).nodes[-1].location == "step 24"

    def test_it_opens_at_what_the_run_is_at(self, stage: Stage) -> None:
        flows.SWITCH["broken"] = True
        stage.start(flows.switched, id="run")
        assert history_tree(Run.objects.get(pk="run"), size=1).nodes[0].location == "charge"
        assert [node.location for node in history_tree(Run.objects.get(pk="run"), only_failed=True).nodes] == ["charge"]

    def test_a_page_of_branches_keeps_what_stands_around_it(self, stage: Stage) -> None:
        stage.start(flows.branches, id="run")
        page = history_tree(Run.objects.get(pk="run"), start=3, size=2)  # mail and its step
        assert [node.title for node in page.nodes] == ["mail", "send"]
        assert [root.title for root in page.roots] == ["ship"]


class TestPayloads:
    def test_what_json_lacks_is_shown_as_text(self) -> None:
        odd = {1: {2, 1}, "b": b"x", "t": (1,), "d": NOW, "n": float("nan"), "big": 2**70, "o": object}
        shown = jsonable(odd)
        assert shown["1"] == [1, 2]
        assert (shown["d"], shown["n"], shown["t"]) == ("2026-09-01T12:00:00+00:00", "nan", [1])
        assert shown["big"] == str(2**70)

    def test_what_cannot_be_read_is_said(self) -> None:
        assert "unreadable" in payload("w", "input", "no codec wrote this", Place("r", "input"))

    def test_what_is_long_is_cut_and_says_so(self) -> None:
        assert pretty("x" * 100, most=10).endswith("the export has all")
        assert pretty("\ud800é") == '"\\ud800é"'

    def test_an_export_has_everything_and_without_permission_no_payload(self, stage: Stage) -> None:
        stage.start(flows.approve, {"secret": 1}, id="run")
        get_run("run").send("approved", {"secret": 2})
        run = stage.settle("run")
        whole, bare = (exported(run, with_payloads=each) for each in (True, False))
        assert whole["run"]["input"]["args"] == [{"secret": 1}]
        assert whole["messages"][0]["body"] == {"secret": 2}
        assert [entry["location"] for entry in whole["entries"]] == ["prepare", "approval"]
        assert "secret" not in str(bare)
        assert whole["is_complete"]


def test_a_revision_changes_with_the_history_and_not_with_a_heartbeat(stage: Stage) -> None:
    run = stage.start(flows.approve, id="run")
    before = progress_of(run)
    Run.objects.filter(pk="run").update(lease_expires_at=stage.now)
    run.refresh_from_db()
    assert progress_of(run) == before
    get_run("run").send("elsewhere")
    run.refresh_from_db()
    assert progress_of(run).revision != before.revision


def test_a_filter_is_a_selection_page_by_page(stage: Stage) -> None:
    for number in range(5):
        stage.start(flows.quick, id=f"run-{number}")
    selection = Filtered(RunCriteria(states=frozenset({"completed"})))
    first, cursor = selection.page(None, 3)
    rest, end = selection.page(cursor, 3)
    assert ([*first, *rest], end) == ([f"run-{n}" for n in (4, 3, 2, 1, 0)], None)


@pytest.mark.parametrize("text", ["", "x", "=", "W10", "WzEsMl0", "bnVsbA", "ey", "a" * 5_000, "é", "\x00"])
def test_a_cursor_that_no_page_gave_is_refused(db: None, text: str) -> None:
    if not text:
        assert list_runs(RunCriteria(), cursor=text).runs == []
        return
    with pytest.raises(InvalidCursorError):
        list_runs(RunCriteria(), cursor=text)


def test_a_state_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no state 'lost'"):
        RunCriteria(states=frozenset({"lost"}))


class TestRecordsOfOthers:
    """Other programs write to Redis too, and may write anything."""

    def test_a_worker_whose_record_cannot_be_read_is_left_out(
        self, stage: Stage, redis_connection: "redis.Redis", caplog: pytest.LogCaptureFixture
    ) -> None:
        redis_connection.hset("rq:worker:evil", mapping={"birth": "x", "pid": "abc", "queues": "default"})
        redis_connection.hset("rq:worker:odd", mapping={"birth": b"\xff", "queues": b"\xff"})
        redis_connection.sadd("rq:workers", "rq:worker:evil", "rq:worker:odd", b"rq:worker:\xff")
        found = worker_overview()
        assert ([*found.workers], found.problem) == ([], "")
        assert "rq:worker:evil" in caplog.text

    def test_the_records_of_any_number_of_workers_are_read_at_once(
        self, stage: Stage, redis_connection: "redis.Redis"
    ) -> None:
        def reads() -> int:
            return int(redis_connection.info("stats")["total_reads_processed"])

        asked = []
        for number in (2, 40):
            for each in range(number):
                record: dict[Any, Any] = {"hostname": "web", "pid": each + 1, "queues": "default,high", "state": "idle"}
                record["birth"] = "2026-01-01T00:00:00.000000Z"
                redis_connection.hset(f"rq:worker:w{each}", mapping=record)
                redis_connection.sadd("rq:workers", f"rq:worker:w{each}", f"rq:worker:gone{each}")
            before = reads()
            assert len(worker_overview().workers) == number
            asked.append(reads() - before)
        assert asked[0] == asked[1]
        worker = worker_overview().workers[0]
        assert (worker.name, worker.host, worker.pid, worker.queues) == ("w0", "web", 1, ("default", "high"))
        assert worker.started_at == datetime(2026, 1, 1, tzinfo=UTC)

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, '{"at": "2026-01-01T00:00:00", "interval": 5, "by": "x"}', b"\xff"]
    )
    def test_a_sign_of_a_sweep_that_cannot_be_read_is_none(
        self, redis_connection: "redis.Redis", text: str | bytes
    ) -> None:
        redis_connection.set(registry.KEY, text)
        assert registry.last_sweep() is None
