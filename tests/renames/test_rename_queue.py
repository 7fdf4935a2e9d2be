"""A queue with another name: what is rewritten, and how workers of either name serve its runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.test import override_settings
from django.utils import timezone

from durable import Schedule, every
from durable.core.errors import BulkCountError, HoldError
from durable.core.limits import ranks
from durable.core.limits.ranks import Ranking
from durable.core.names.renames import AliasKind, names_of_queue, put_queues_in_force
from durable.core.new_runs import NewRun
from durable.core.records import HoldKind, RunRecord
from durable.inspection.explanation import explain
from durable.inspection.pagination import RunOrder
from durable.inspection.runs import RunCriteria, list_runs
from durable.inspection.selection import Filtered
from durable.inspection.workers import worker_overview
from durable.migrations import RenameQueue
from durable.models import Hold, Lane, RenamedName, Run, RunRank, SavedView, Share, WorkerProcess
from durable.notifier import enqueue, notify, redis_clients, wakeups
from durable.operations.bulk import BulkOrder, eligible, perform_page
from durable.operations.bulk import apply as bulk
from durable.operations.holds import pause_queue, resume_queue
from durable.renames.rewriting import RenameRefused
from durable.store import Store, store_for
from durable.worker.loop import DueQueues, InlinePool, WorkerLoop
from durable.worker.presence import Presence, ShutdownFlag
from durable.worker.timer import Sweep, Timer
from tests.renames.conftest import apply, unapply
from tests.support.locks import other_session
from tests.support.notifications import jobs, take_job
from tests.support.runs import Passes, finish, new_runs
from tests.support.worker import work_off

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_connection")]

OLD, NEW = "default", "orders"
RENAME = RenameQueue(OLD, NEW, wait=0)


@pytest.fixture
def store() -> Store:
    return store_for("default")


@pytest.fixture(autouse=True)
def no_looks_before(monkeypatch: pytest.MonkeyPatch, no_outages: None) -> None:
    monkeypatch.setattr(notify._may_look, "_said", {})


@pytest.fixture
def both_names() -> Iterator[None]:
    """Settings in which RQ_QUEUES has both names."""
    from django.conf import settings

    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, NEW: settings.RQ_QUEUES[OLD]}):
        yield


@pytest.fixture
def new_settings() -> Iterator[None]:
    """The settings of the new code, in which RQ_QUEUES has the new name alone."""
    from django.conf import settings

    with override_settings(RQ_QUEUES={NEW: settings.RQ_QUEUES[OLD]}, DURABLE={**settings.DURABLE, "QUEUE": NEW}):
        yield


def bulk_order(verb: str, queue: str) -> BulkOrder:
    selection = Filtered(RunCriteria(queue=queue))
    return BulkOrder(verb=verb, selection=selection, options={}, reason="", source="code", user=None, label="", total=5)


def take_off(store: Store, run_ids: list[str]) -> None:
    """Have these runs end."""
    for each in run_ids:
        finish(claimed(store, each), store)


def claimed(store: Store, run_id: str) -> RunRecord:
    now = timezone.now()
    run = store.claim_run(run_id, now=now, lease_until=now + timedelta(minutes=1), worker="test")
    assert run is not None
    return run


def executed(store: Store, *queues: str) -> list[str]:
    """The runs that workers of these queues execute now, in order."""
    passes = Passes()
    for each in queues:
        work_off(each, store=store, execute=passes)
    return passes.passed


def apply_elsewhere() -> None:
    """Apply the rename in another process, of which this one has heard nothing."""
    apply(RENAME, is_known=False)
    put_queues_in_force(())


def queue_of(run_id: str) -> str:
    return Run.objects.get(pk=run_id).queue


def states() -> set[str]:
    return set(Run.objects.values_list("state", flat=True))


# -- runs


@pytest.mark.parametrize("served", [OLD, NEW])
def test_a_worker_of_either_name_executes_the_runs_of_both(store: Store, served: str) -> None:
    before = new_runs(store, 3)
    apply(RENAME)
    assert {queue_of(each) for each in before} == {NEW}
    old, new = new_runs(store, 3), new_runs(store, 3, queue=NEW)  # of code of either name, since
    assert sorted(executed(store, served)) == sorted([*before, *old, *new])


def test_ended_runs_stay_where_they_were_and_what_reopens_them_has_them_served(store: Store) -> None:
    [ended], [asleep] = new_runs(store), new_runs(store, wake_at=timezone.now() + timedelta(hours=1))
    work_off(store=store, execute=Passes())
    apply(RENAME)
    assert (queue_of(ended), queue_of(asleep)) == (OLD, NEW)


def test_a_run_that_a_worker_has_is_rewritten_and_written_as_ever(store: Store) -> None:
    [run_id] = new_runs(store)
    held = claimed(store, run_id)
    apply(RENAME)
    assert held.queue == OLD
    finish(held, store)
    assert (queue_of(run_id), states()) == (NEW, {"completed"})


@pytest.mark.parametrize("served", [OLD, NEW])
def test_no_name_keeps_a_worker_from_the_other(store: Store, served: str) -> None:
    """One of the queues never runs dry within a job: the other has its part of the job's time all the same."""
    apply(RENAME)
    [waits] = new_runs(store, queue=OLD if served == NEW else NEW)
    passed: list[str] = []

    def pass_and_start(record: Any, *, store: Store, eviction: Any) -> Any:
        passed.append(record.id)
        if record.queue == served and len(passed) < 2_000:
            new_runs(store, queue=served)
        return finish(record, store)

    new_runs(store, queue=served)
    work_off(served, store=store, execute=pass_and_start, seconds=1.0)
    assert waits in passed
    assert len(passed) < 2_000  # the other was never empty


def test_the_reverse_gives_open_runs_the_old_name_and_both_go_on_to_be_served(store: Store) -> None:
    apply(RENAME)
    runs = new_runs(store, 2, queue=NEW)
    unapply(RENAME)
    assert {queue_of(each) for each in runs} == {OLD}
    runs += new_runs(store, queue=NEW)
    assert sorted(executed(store, OLD)) == sorted(runs)
    apply(RENAME)
    assert RenamedName.objects.get().kind == AliasKind.QUEUE


def test_the_reverse_of_what_was_never_applied_changes_nothing(store: Store) -> None:
    [run_id] = new_runs(store, queue=NEW)
    unapply(RENAME)
    assert queue_of(run_id) == NEW
    assert not RenamedName.objects.exists()


def test_several_names_one_after_the_other(store: Store) -> None:
    runs = new_runs(store)
    apply(RENAME)
    apply(RenameQueue(NEW, "third", wait=0))
    assert queue_of(runs[0]) == "third"
    runs += [*new_runs(store), *new_runs(store, queue=NEW)]
    assert sorted(executed(store, NEW)) == sorted(runs)


def test_a_later_migration_rewrites_what_old_code_has_started_since(store: Store) -> None:
    apply(RENAME)
    [run_id] = new_runs(store)
    apply(RenameQueue(OLD, NEW))
    assert queue_of(run_id) == NEW
    assert RenamedName.objects.count() == 1


# -- who learns of it, and when


def test_a_job_that_was_in_redis_before_finds_the_runs(store: Store) -> None:
    runs = new_runs(store, 3)
    notify.notify(OLD)
    apply(RENAME)
    [job] = [each for each in jobs() if list(each.args) == [OLD]]
    assert sorted(executed(store, job.args[0])) == sorted(runs)


def test_a_running_worker_learns_of_it_with_its_next_sign(store: Store) -> None:
    runs = new_runs(store, 3)
    presence = Presence(queues=[OLD], slots=1, stop=ShutdownFlag(), passes=lambda: 0)
    with presence:
        apply_elsewhere()
        assert executed(store, OLD) == []
        presence._next_at = 0.0  # 15 seconds later
        presence.sign()
        assert sorted(executed(store, OLD)) == sorted(runs)


def test_a_work_horse_learns_of_it_in_its_only_job(store: Store) -> None:
    runs = new_runs(store, 3)
    apply_elsewhere()
    passes = Passes()
    with WorkerLoop(InlinePool(), store=store, execute=passes, stop=ShutdownFlag(), learns_names=True) as loop:
        loop.work(OLD)
    assert sorted(passes.passed) == sorted(runs)


def test_the_sweep_learns_of_it_and_notifies_the_name_that_the_settings_have(store: Store) -> None:
    new_runs(store)
    apply_elsewhere()
    take_job()
    Sweep(store).tick(timezone.now())
    assert [list(each.args) for each in jobs()] == [[OLD]]
    assert redis_clients.client(OLD).exists(enqueue.LOOK.format(OLD))


@pytest.mark.usefixtures("both_names")
def test_the_sweep_learns_of_it_where_the_settings_have_both_names(store: Store) -> None:
    new_runs(store)
    apply_elsewhere()
    redis_clients.client(OLD).flushdb()
    Sweep(store).tick(timezone.now())
    assert [redis_clients.rq_queue(each).count for each in (OLD, NEW)] == [1, 1]


def test_the_timer_notifies_of_runs_of_either_name_that_become_due(store: Store) -> None:
    apply(RENAME)
    take_job()
    notify.acknowledge(OLD)
    now = timezone.now()
    timer = Timer(store)
    soon = now + timedelta(milliseconds=200)
    new_runs(store, queue=NEW, wake_at=soon)
    assert timer.tick(now) == soon
    assert jobs() == []
    timer.tick(soon)
    assert [list(each.args) for each in jobs()] == [[OLD]]


@pytest.mark.usefixtures("both_names")
def test_all_names_that_the_settings_have_are_notified(store: Store) -> None:
    apply(RENAME)
    for name in (OLD, NEW):
        redis_clients.client(name).flushdb()
        notify.notify(name)
        assert [redis_clients.rq_queue(each).count for each in (OLD, NEW)] == [1, 1]


@pytest.mark.usefixtures("new_settings")
def test_code_that_does_not_know_a_name_looks_whether_it_is_one_of_its_own(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    apply_elsewhere()
    redis_clients.client(NEW).flushdb()
    notify.notify(OLD)
    assert redis_clients.rq_queue(NEW).count == 1
    assert "RQ_QUEUES lacks it" not in caplog.text


def test_a_queue_that_nobody_knows_is_logged_as_ever(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    apply(RENAME)
    notify.notify("nowhere")
    assert 'for queue "nowhere": RQ_QUEUES lacks it' in caplog.text


def test_without_redis_a_worker_of_either_name_hears_of_both() -> None:
    apply(RENAME)
    with override_settings(DURABLE={"REDIS": False}):
        for served in (OLD, NEW):
            for said in (OLD, NEW):
                due = DueQueues([served], serves_all=False)
                wakeups.listen(due)
                try:
                    notify.notify(said)
                    assert due.next() == served
                    notify.notify_at(said, timezone.now() - timedelta(seconds=1))
                    assert due.next() == served
                finally:
                    wakeups.unlisten(due)


# -- pauses


def test_a_paused_queue_stays_paused_under_either_name(store: Store) -> None:
    runs = new_runs(store)
    pause_queue(OLD)
    apply(RENAME, is_known=False)
    runs += [*new_runs(store), *new_runs(store, queue=NEW)]
    assert executed(store, OLD, NEW) == []
    with pytest.raises(HoldError):
        pause_queue(NEW)
    resume_queue(NEW)
    assert not Hold.objects.exists()
    pause_queue(NEW)  # an operator who sees the new name
    assert set(Hold.objects.values_list("kind", "name")) == {(HoldKind.QUEUE, OLD), (HoldKind.QUEUE, NEW)}
    resume_queue(OLD)
    assert sorted(executed(store, OLD)) == sorted(runs)


def test_the_reverse_keeps_the_pause(store: Store) -> None:
    apply(RENAME)
    pause_queue(NEW)
    Hold.objects.filter(name=OLD).delete()  # of an operator whose process did not know of the rename
    new_runs(store, queue=NEW)
    unapply(RENAME)
    assert executed(store, OLD) == []


# -- priorities and shares


def ranked(store: Store, run_id: str, ranking: Ranking, queue: str = OLD) -> str:
    now = timezone.now()
    run: Any = NewRun(id=run_id, workflow="w", queue=queue, input="{}", created_at=now, wake_at=now, ranking=ranking)
    store.create([run])
    return run_id


def test_runs_with_ranks_are_claimed_in_their_order_under_the_other_name(store: Store) -> None:
    plain = new_runs(store)
    first = ranked(store, "first", Ranking(priority="high", head_start=600))
    for number in range(3):
        ranked(store, f"a-{number}", Ranking(share="a"))
    ranked(store, "b-0", Ranking(share="b"))
    before = _claimable_order(OLD)
    apply(RENAME)
    assert not Run.objects.filter(queue=OLD).exists()
    assert set(Lane.objects.filter(queue=NEW).values_list("head_start", flat=True)) == {0, 600}
    found = executed(store, OLD)
    assert found[0] == first
    assert found == before
    assert set(found) == {*plain, "first", "a-0", "a-1", "a-2", "b-0"}
    assert RunRank.objects.count() == 5


def _claimable_order(queue: str) -> list[str]:
    """The runs in the order in which claims take them: by head start and tag, as `durable.core.limits.ranks` has it."""
    candidates = [
        ranks.Candidate(each.id, each.wake_at, each.head_start or 0, each.start_tag)
        for each in Run.objects.filter(queue=queue)
        if each.wake_at
    ]
    return [each.run_id for each in ranks.ranked(candidates)]


def test_shares_go_on_from_where_they_are(store: Store) -> None:
    for number in range(5):
        ranked(store, f"a-{number}", Ranking(share="a"))
    apply(RENAME)
    ranked(store, "a-new", Ranking(share="a"), NEW)
    ranked(store, "b-new", Ranking(share="b"), NEW)
    found = executed(store, NEW)
    assert found.index("b-new") < found.index("a-4")
    assert found[-1] == "a-new"
    assert Share.objects.filter(queue=NEW).count() == 3


# -- what else goes by the name


def test_lists_of_either_name_have_the_runs_of_both(store: Store) -> None:
    apply(RENAME)
    runs = [*new_runs(store, 2), *new_runs(store, 2, queue=NEW)]
    others = new_runs(store, queue="high")
    for name in (OLD, NEW):
        for order in (RunOrder.NEWEST, RunOrder.NEXT):
            assert {each.id for each in list_runs(RunCriteria(queue=name), order=order).runs} == {*runs}
    assert [each.id for each in list_runs(RunCriteria(queue="high")).runs] == others


@pytest.mark.parametrize("asked", [OLD, NEW])
def test_a_bulk_under_way_finds_the_runs_under_their_new_name(store: Store, asked: str) -> None:
    runs, others = new_runs(store, 5), new_runs(store, queue="high")
    ended = new_runs(store)
    take_off(store, ended)
    order = bulk_order("cancel", asked)
    done, cursor = perform_page(order, None, limit=2) if asked == OLD else ([], None)
    apply_elsewhere()
    more, after = perform_page(order, cursor)
    assert after is None
    assert sorted(each.run_id for each in [*done, *more] if each.outcome == "done") == sorted(runs)
    assert {each.id: each.state for each in Run.objects.exclude(pk__in=runs)} == {
        others[0]: "pending",
        ended[0]: "completed",
    }


@pytest.mark.parametrize("asked", [OLD, NEW])
def test_a_bulk_counts_what_it_will_find(store: Store, asked: str) -> None:
    """The process that asks has begun before the migration: what an operator agrees to is what a worker finds."""
    apply(RENAME, is_known=False)
    runs = [*new_runs(store, 2), *new_runs(store, 3, queue=NEW)]
    others = new_runs(store, queue="high")
    put_queues_in_force(())
    selection = Filtered(RunCriteria(queue=asked))
    found = eligible("pause", selection)
    assert (found.count, sorted(found.shown)) == (5, sorted(runs))
    put_queues_in_force(())
    with pytest.raises(BulkCountError):
        bulk("pause", selection, expected=3)
    put_queues_in_force(())
    report = bulk("pause", selection, expected=5, in_background=False)
    assert sorted(each.run_id for each in report.results) == sorted(runs)
    assert dict(Run.objects.values_list("id", "state")) == {**dict.fromkeys(runs, "paused"), others[0]: "pending"}


def test_schedules_and_saved_views_refer_to_the_new_name() -> None:
    now = timezone.now()
    Schedule.objects.create(name="nightly", workflow="w", queue=OLD, rule=every("1 day"))
    Schedule.objects.create(name="other", workflow="w", rule=every("1 day"))
    queries = {"a": f"state=failed&queue={OLD}", "b": f"workflow={OLD}", "c": "queue=high"}
    for name, query in queries.items():
        SavedView.objects.create(name=name, query=query, owner_key="1", created_at=now)
    apply(RENAME)
    assert dict(Schedule.objects.values_list("name", "queue")) == {"nightly": NEW, "other": ""}
    assert dict(SavedView.objects.values_list("name", "query")) == {**queries, "a": f"state=failed&queue={NEW}"}
    unapply(RENAME)
    assert dict(Schedule.objects.values_list("name", "queue")) == {"nightly": OLD, "other": ""}
    assert dict(SavedView.objects.values_list("name", "query")) == queries


def test_pages_know_that_a_worker_of_one_name_serves_both(store: Store) -> None:
    now = timezone.now()
    WorkerProcess.objects.create(
        name="one:1:a", host="one", pid=1, queues=[OLD], slots=1, started_at=now, last_seen_at=now, state="serving"
    )
    [run_id] = new_runs(store)
    apply_elsewhere()
    [found] = [each for each in worker_overview().queues if each.name == NEW]
    assert (found.workers, found.is_known, found.has_runs) == (1, True, True)
    put_queues_in_force(())
    Run.objects.update(wake_at=now - timedelta(hours=1))
    told = explain(Run.objects.get(pk=run_id), now)
    assert "RQ_QUEUES lacks" not in f"{told.headline} {told.detail}"


# -- refused


def test_a_name_that_runs_or_schedules_have_is_refused(store: Store) -> None:
    [run_id] = new_runs(store, queue=NEW)
    with pytest.raises(RenameRefused, match=f'the run "{run_id}" is in a queue "{NEW}" already'):
        apply(RENAME)
    Run.objects.all().delete()
    Schedule.objects.create(name="nightly", workflow="w", queue=NEW, rule=every("1 day"))
    with pytest.raises(RenameRefused, match=f'the schedule "nightly" is in a queue "{NEW}" already'):
        apply(RENAME)
    assert not RenamedName.objects.exists()


def test_a_name_of_another_renamed_queue_is_refused() -> None:
    apply(RENAME)
    for taken in (OLD, NEW):
        with pytest.raises(RenameRefused, match=f'"{taken}" is a name of the queue "{OLD}", which was renamed'):
            apply(RenameQueue("high", taken))
    assert names_of_queue(OLD) == (OLD, NEW)
    assert names_of_queue("high") == ("high",)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [(OLD, OLD, "is the name already"), (OLD, "x" * 201, "printable characters"), ("", NEW, "printable characters")],
)
def test_what_are_no_two_names_is_refused_when_the_file_is_read(old: str, new: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RenameQueue(old, new)


# -- locks


@pytest.mark.postgres
def test_a_run_whose_row_is_locked_keeps_the_old_name_and_is_served(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = new_runs(store, 3)
    with psycopg.connect(**other_session()) as other:
        other.execute("SELECT 1 FROM durable_run WHERE id = %s FOR UPDATE", [runs[1]])
        apply(RENAME)
        assert [queue_of(each) for each in runs] == [NEW, OLD, NEW]
    assert "1 run that other transactions have locked keeps the old name" in capsys.readouterr().out
    assert sorted(executed(store, NEW)) == sorted(runs)


def test_a_plain_queue_costs_no_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        notify.notify(OLD)
        notify.notify_at(OLD, timezone.now() + timedelta(milliseconds=100))
