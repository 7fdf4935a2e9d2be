"""Starts under one key from several threads and processes at once: one open run, and no start is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from random import Random

import pytest
from django.db import close_old_connections

from durable import Context, MessageTimeoutError, RunConflictError, get_run, workflow
from durable.core.records import ENDED
from durable.models import QueueMessage, Run, RunKey
from tests.support.at_once import THREADS, at_once, patiently
from tests.support.worker import work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

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
