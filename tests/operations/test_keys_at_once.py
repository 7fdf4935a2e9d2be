"""Starts under one key, a pause and operators, from several threads and processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from django.db import OperationalError, close_old_connections, connections
from django.utils import timezone

from durable import Context, Handle, get_run, operations, workflow
from durable.conf import conf
from durable.core.records import ENDED
from durable.errors import DurableError, MessageTimeoutError, RunConflictError
from durable.models import OperatorAction, QueueMessage, Run, RunKey
from durable.operations import Actor, acting_as, audit, bulk
from durable.operations.holds import pause_queue, resume_queue
from durable.store import store_for
from tests.support.waiting import THREADS, at_once, eventually, patiently
from tests.support.worker import work_off

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


_STARTS = 8


@workflow(name="tests.at_once.job")
def job(ctx: Context, number: int = 0) -> int:
    return number


def test_all_get_the_one_open_run() -> None:
    found: Counter[str] = Counter()
    lock = threading.Lock()

    def start(number: int) -> None:
        for _ in range(_STARTS):
            handle = job.using(key="k").start(number)
            with lock:
                found[handle.id] += 1

    at_once(lambda number: patiently(lambda: start(number)))
    assert len(found) == 1
    assert Run.objects.count() == 1


def test_all_but_one_are_refused() -> None:
    made: list[str] = []

    def start(number: int) -> None:
        try:
            made.append(job.using(key="k", if_open="error").start(number).id)
        except RunConflictError:
            return

    at_once(lambda number: patiently(lambda: start(number)))
    assert len(made) == 1
    assert list(Run.objects.values_list("pk", flat=True)) == made


def test_one_of_those_that_replace_one_another_is_left() -> None:
    def start(number: int) -> None:
        for _ in range(_STARTS):
            patiently(lambda: job.using(key="k", if_open="replace").start(number))

    at_once(start)
    states = Counter(Run.objects.values_list("state", flat=True))
    assert states == {"pending": 1, "cancelled": THREADS * _STARTS - 1}
    holder = job.open_run(key="k")
    assert holder is not None
    assert holder.state == "pending"


def test_all_messages_are_in_one_run_in_the_order_of_their_sender() -> None:
    def send(number: int) -> None:
        for place in range(_STARTS):
            patiently(lambda place=place: job.using(key="k").start_or_send("add", [number, place]))  # type: ignore[misc]

    at_once(send)
    assert Run.objects.count() == 1
    bodies = [json.loads(body) for body in QueueMessage.objects.order_by("order").values_list("body", flat=True)]
    assert Counter(number for number, _ in bodies) == dict.fromkeys(range(THREADS), _STARTS)
    for thread in range(THREADS):
        assert [place for number, place in bodies if number == thread] == list(range(_STARTS))


@workflow(name="tests.at_once.collector")
def collector(ctx: Context) -> list[int]:
    """Takes what is sent until nothing has come for a moment."""
    found: list[int] = []
    while True:
        try:
            found.append(ctx.queue.next(f"item {len(found)}", names=["add"], timeout=0.02).body)
        except MessageTimeoutError:
            return found


@pytest.mark.slow
def test_no_message_is_lost_when_its_run_is_about_to_end() -> None:
    """Each message is received once, whenever it comes: also while its run gives up waiting, or is being completed."""
    done = threading.Event()
    random = Random(7)

    def act(number: int) -> None:
        if number:
            while not done.is_set() or Run.objects.exclude(state__in=ENDED).exists():
                work_off()
            return
        for place in range(100):
            patiently(lambda place=place: collector.using(key="k").start_or_send("add", place))  # type: ignore[misc]
            pause.wait(random.uniform(0, 0.05))
        done.set()

    pause = threading.Event()
    at_once(act, threads=2)
    assert set(Run.objects.values_list("state", flat=True)) == {"completed"}
    assert set(QueueMessage.objects.values_list("state", flat=True)) == {"received"}
    outputs = [get_run(each).output or [] for each in Run.objects.order_by("created_at").values_list("pk", flat=True)]
    assert sorted(each for output in outputs for each in output) == list(range(100))


def test_starts_beside_ends_never_find_an_ended_run() -> None:
    """While one thread ends whatever has the key, the others start."""

    def act(number: int) -> None:
        for place in range(_STARTS):
            if number == 0:
                held = job.open_run(key="k")
                if held is not None:
                    patiently(held.cancel)
            else:
                patiently(lambda place=place: job.using(key="k").start_or_send("add", place))  # type: ignore[misc]

    at_once(act)
    assert RunKey.objects.filter(is_open=True, run__state__in=ENDED).count() == 0
    assert Run.objects.exclude(state__in=ENDED).count() <= 1
    assert QueueMessage.objects.count() == (THREADS - 1) * _STARTS


def test_debounced_starts_are_one_run_with_the_last_input() -> None:
    quiet = job.using(key="k", debounce="1 hour", at_most="2 hours")

    def start(number: int) -> None:
        for _ in range(_STARTS):
            patiently(lambda: quiet.start(number))

    at_once(start)
    run = Run.objects.select_related("key").get()
    assert run.key.moves == THREADS * _STARTS - 1
    assert run.wake_at is not None
    assert run.wake_at <= run.key.taken_at + timedelta(hours=2)


STARTING = """
import sys
import django
django.setup()
from durable import Context, workflow

@workflow(name="tests.at_once.job")
def job(ctx: Context, number: int = 0) -> int:
    return number

quiet = job.using(key="k", debounce="1 hour", at_most="2 hours")
print("ready", flush=True)
sys.stdin.readline()
for place in range(20):
    print(quiet.start(int(sys.argv[1]) * 1000 + place).id, flush=True)
"""


@pytest.mark.slow
def test_two_processes_that_debounce_one_key(child_environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", STARTING]
    processes = [
        subprocess.Popen(
            [*command, str(number)],
            env=child_environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        found = [set(each.communicate(timeout=300)[0].split()) for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()
    assert [each.returncode for each in processes] == [0, 0]
    close_old_connections()
    run = Run.objects.select_related("key").get()
    assert found == [{run.pk}, {run.pk}]
    assert run.key.moves == 39
    assert json.loads(run.input)["args"][0] in (1019, 2019), "the last start of the one or of the other"
    assert get_run(run.pk).state == "pending"


# -- A queue that is paused while several workers claim from it: nothing is claimed once the pause has been committed


_CLAIMERS = 3


@workflow(name="tests.pause_at_once.job")
def pausable_job(ctx: Context) -> None:
    return None


class Claimers:
    """Threads that claim one run at a time: `claims` has when each claim began, and how many runs it got."""

    def __init__(self) -> None:
        self.claims: list[tuple[float, int]] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._claim, args=[number]) for number in range(_CLAIMERS)]

    def __enter__(self) -> Claimers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join(300)

    def _claim(self, number: int) -> None:
        store = store_for(conf.DATABASE)
        try:
            while not self._stopping.is_set():
                began, now = time.monotonic(), timezone.now()
                lease = now + timedelta(hours=1)
                try:
                    found = store.claim(
                        queue=conf.QUEUE, now=now, lease_until=lease, worker=f"claimer-{number}", limit=1
                    )
                except OperationalError:  # SQLite is locked
                    continue
                self.claims.append((began, len(found)))
                self._stopping.wait(0.002)  # SQLite has one lock for all writers, and no line before it
        finally:
            connections.close_all()

    def since(self, moment: float) -> list[int]:
        """What the claims that began after this moment got."""
        return [count for began, count in list(self.claims) if began > moment]


def test_nothing_is_claimed_once_a_pause_is_committed() -> None:
    pausable_job.start_many([()] * 400)
    with Claimers() as claimers:
        for _ in range(3):
            before = sum(count for _, count in claimers.claims)
            eventually(lambda before=before: sum(count for _, count in list(claimers.claims)) > before + 5)  # type: ignore[misc]
            pause_queue(conf.QUEUE)
            paused_at = time.monotonic()
            eventually(lambda paused_at=paused_at: len(claimers.since(paused_at)) > 20)  # type: ignore[misc]
            assert sum(claimers.since(paused_at)) == 0
            resume_queue(conf.QUEUE)
    claimed = sum(count for _, count in claimers.claims)
    assert Run.objects.filter(lease_expires_at__isnull=False).count() == claimed < 400


# -- operators that act on one run at the same moment, on connections of their own: one wins, and the log has both


@workflow(name="tests.operators.waiting")
def waiting(ctx: Context) -> None:
    ctx.step("a", str)
    ctx.queue.next("wait", ["mail"])


def at_the_same_moment(act: Callable[[], Any]) -> list[Any]:
    """What became of each operator's attempt: its value, or the error's class."""
    outcomes: list[Any] = []

    def operate(number: int) -> None:
        try:
            with acting_as(Actor("cli", label=f"operator {number}")):
                outcomes.append(act())
        except DurableError as error:
            outcomes.append(type(error).__name__)

    at_once(operate)
    return outcomes


def logged() -> list[str]:
    return sorted(OperatorAction.objects.values_list("outcome", flat=True))


@pytest.mark.postgres
def test_one_of_them_cancels(redis_connection: object) -> None:
    run = waiting.using(id="o").start()
    outcomes = at_the_same_moment(run.cancel)
    assert sorted(map(str, outcomes)) == ["InvalidTransitionError"] * (THREADS - 1) + ["None"]
    assert logged() == ["done"] + ["refused"] * (THREADS - 1)


@pytest.mark.postgres
def test_one_of_those_that_saw_the_same_acts(redis_connection: object) -> None:
    run = waiting.using(id="o").start()
    seen = audit.revision(operations.record("o"))

    def send() -> str:
        with acting_as(Actor("cli"), expected=seen):
            return run.send("mail")

    outcomes = at_the_same_moment(send)
    assert outcomes.count("StaleRunError") == THREADS - 1
    assert logged() == ["done"] + ["stale"] * (THREADS - 1)
    assert Run.objects.get().inbox.count() == 1


@pytest.mark.postgres
def test_one_new_run_is_made_for_one_id(redis_connection: object) -> None:
    run = waiting.using(id="o").start()
    run.cancel()
    OperatorAction.objects.all().delete()
    outcomes = at_the_same_moment(lambda: run.restart(id="again"))
    assert outcomes == [Handle("again")] * THREADS
    assert Run.objects.count() == 2
    assert logged() == ["done"] * THREADS


@pytest.mark.postgres
def test_bulks_over_the_same_runs_do_each_once(redis_connection: object) -> None:
    ids = [f"r{number}" for number in range(20)]
    waiting.start_many([()] * 20, ids=ids)
    order = bulk.BulkOrder(verb="cancel", selection=bulk.Ids(tuple(reversed(ids))))
    reports = at_the_same_moment(lambda: bulk.perform_page(order, None)[0])
    done = [each.run_id for report in reports for each in report if each.outcome == "done"]
    assert sorted(done) == sorted(ids)
