"""`manage.py durable_worker` while Redis is away: killed, stopped without a word, back without what it had."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from django_rq import get_queue

from durable import get_run, models
from durable.core.records import RunState
from durable.drivers.timeouts import watch
from durable.inspection.explanation import explain_fully
from durable.notifier import notify, redis_clients
from durable.store import Store
from durable.worker.rq import SimpleWorker
from project.servers import EmbeddedRedis
from tests.support.flows.workflows import silent
from tests.support.processes import Run, is_completed, start_run
from tests.support.runs import state
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("unlogged", "no_outages"),
]


@pytest.fixture
def own_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedRedis]:
    """A Redis of the test's own, which forgets everything when it is restarted."""
    monkeypatch.setattr(redis_clients, "SOCKET_TIMEOUT", 1.0)
    with EmbeddedRedis() as server:
        queues = {name: {"URL": server.url, "SERIALIZER": "json"} for name in settings.RQ_QUEUES}
        with override_settings(RQ_QUEUES=queues):
            yield server


@pytest.fixture
def work(own_redis: EmbeddedRedis, run: Run) -> Run:
    """Start a `durable_worker` with so many slots, which sweeps once in ten minutes."""
    own = {"REDIS_URL": own_redis.url, "FLOWS_SWEEP": "600"}
    return lambda concurrency: run("durable_worker", f"--concurrency={concurrency}", **own)


def goes_on(store: Store, name: str) -> None:
    """A new run begins, hears a message and ends; neither waits for a sweep."""
    run_id = start_run(store, "flows.silent", name)
    eventually(lambda: state(store, run_id).state == RunState.SLEEPING)
    get_run(run_id).send("news", "peace")
    eventually(lambda: is_completed(store, run_id))


def killed(server: EmbeddedRedis) -> None:
    server.stop("kill")


def back_again(server: EmbeddedRedis) -> None:
    server.start()


def stopped(server: EmbeddedRedis) -> None:
    """It accepts connections, and answers nothing."""
    os.kill(server.pid, signal.SIGSTOP)


def continued(server: EmbeddedRedis) -> None:
    os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(("go", "come_back"), [(killed, back_again), (stopped, continued)], ids=["killed", "stopped"])
def test_work_goes_on_while_redis_is_away_and_says_so_once(
    go: Callable[[EmbeddedRedis], None],
    come_back: Callable[[EmbeddedRedis], None],
    concurrency: int,
    store: Store,
    work: Run,
    own_redis: EmbeddedRedis,
) -> None:
    program = work(concurrency)
    program.pids()
    goes_on(store, "before")
    go(own_redis)
    try:
        for number in range(3):
            goes_on(store, f"meanwhile-{number}")
        program.wait_for("Redis is away", 2)  # the parent and the worker
        assert redis_clients.is_found_away("default")
    finally:
        come_back(own_redis)
    program.wait_for("Redis answers again", 2)
    goes_on(store, "after")
    assert program.end() == 0
    told = [line for line in program.lines if "Redis" in line]
    assert len(told) == 4, told
    assert not [line for line in program.lines if "ERROR" in line or "Traceback" in line or "retrying" in line]


@pytest.mark.parametrize(("go", "come_back"), [(killed, back_again), (stopped, continued)], ids=["killed", "stopped"])
def test_a_start_and_a_message_beside_a_dead_redis_are_committed_and_found(
    go: Callable[[EmbeddedRedis], None],
    come_back: Callable[[EmbeddedRedis], None],
    store: Store,
    work: Run,
    own_redis: EmbeddedRedis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = work(1)
    program.pids()
    goes_on(store, "before")
    go(own_redis)
    try:
        begun = time.monotonic()
        handles = [silent.using(id=f"plain-{number}").start(f"plain-{number}") for number in range(20)]
        with transaction.atomic():
            handles.append(silent.using(id="atomic").start("atomic"))
            handles[-1].send("news", "peace")
        for each in handles[:-1]:
            each.send("news", "peace")
        assert time.monotonic() - begun < 60, "no call waits for long for a Redis that says nothing"
        assert {each.state for each in handles} <= {"pending", "running", "sleeping", "completed"}
        eventually(lambda: is_completed(store, *(each.id for each in handles)))
        [record] = [each for each in caplog.records if each.name == "durable.bell"]
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(
            'Redis is away (queue "default"), durable_worker polls the database until it is back: '
        )
    finally:
        come_back(own_redis)
    program.wait_for("Redis answers again", 2)
    assert program.end() == 0


def test_a_worker_that_starts_while_redis_is_away_executes_runs(
    store: Store, work: Run, own_redis: EmbeddedRedis
) -> None:
    own_redis.stop("kill")
    program = work(1)
    [pid] = program.pids()
    try:
        goes_on(store, "meanwhile")
    finally:
        own_redis.start()
    program.wait_for("Redis answers again", 2)
    goes_on(store, "after")
    assert program.pids() == [pid]
    assert program.end() == 0
    assert not [line for line in program.lines if "Traceback" in line]


@pytest.mark.usefixtures("signal_handlers")
def test_the_end_of_a_job_does_not_wait_for_a_redis_that_stands_still(
    own_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have taken over, to which a new connection would lead."""
    queue = get_queue("default")
    worker = SimpleWorker([queue], connection=queue.connection)
    worker.leaves = True
    monkeypatch.setattr("durable.worker.rq_jobs.work", lambda _name: stopped(own_redis))
    late = threading.Event()

    def give_up() -> None:
        late.set()
        continued(own_redis)

    notify.notify("default")
    deadline = watch(60.0, give_up)
    try:
        worker.work(burst=True, logging_level="CRITICAL")
    finally:
        deadline.end()
        continued(own_redis)
    assert not late.is_set(), "it has waited for the answer to the end of its job"


def doctor(*arguments: str) -> str:
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("durable", "doctor", *arguments, stdout=out)
    return out.getvalue()


def test_the_doctor_says_what_workers_do_while_redis_is_away(work: Run, own_redis: EmbeddedRedis) -> None:
    work(1).pids()
    own_redis.stop("kill")
    said = doctor()
    assert "redis: Redis does not answer (ConnectionError)" in said
    assert "Workers of durable_worker poll the database every 0.2 s until Redis is back" in said
    assert "plain RQ workers execute nothing meanwhile" in said


def test_why_says_what_workers_do_while_redis_is_away(store: Store, own_redis: EmbeddedRedis) -> None:
    waiting = start_run(store, "flows.silent", "waiting")
    said = "Redis does not answer. Workers of durable_worker poll the database"
    assert said not in explain_fully(models.Run.objects.get(pk=waiting), timezone.now()).detail
    own_redis.stop("kill")
    assert said in explain_fully(models.Run.objects.get(pk=waiting), timezone.now()).detail
