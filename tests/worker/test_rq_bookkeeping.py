"""What RQ's lists say of a worker and of durable's jobs, which durable writes in fewer commands than RQ does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import rq
from rq import Queue, get_current_job
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend
from rq.utils import as_text

from durable.notifier import notify
from durable.notifier.enqueue import JOB
from durable.worker import rq as rq_mixin
from durable.worker.rq import SimpleWorker

pytestmark = pytest.mark.redis
QUEUE = "default"


@pytest.fixture
def connection(rq_redis: redis.Redis) -> redis.Redis:
    return rq_redis


@pytest.fixture
def queue(connection: redis.Redis) -> Queue:
    return Queue(QUEUE, connection=connection, serializer=JSONSerializer)


@pytest.fixture
def worker(queue: Queue, connection: redis.Redis) -> SimpleWorker:
    return SimpleWorker([queue], connection=connection)


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """Return what durable's jobs do."""
    return lambda work: monkeypatch.setattr("durable.worker.rq_jobs.work", work)


def serve(worker: SimpleWorker) -> None:
    worker.work(burst=True, logging_level="CRITICAL")


def redis_fields(worker: SimpleWorker) -> dict[str, Any]:
    """What Redis says of the worker now."""
    found = worker.connection.hgetall(worker.key)
    seen = rq.Worker.find_by_key(worker.key, connection=worker.connection)
    current_job = seen.get_current_job_id() if seen is not None else None
    return {as_text(key): as_text(value) for key, value in found.items()} | {"current_job": current_job}


def records(connection: redis.Redis) -> set[str]:
    """What RQ keeps of jobs."""
    keys = {as_text(key) for key in connection.scan_iter("rq:*")}
    return {key for key in keys if not key.startswith(("rq:worker", "rq:queues", "rq:clean", "rq:finished"))}


def test_a_job_is_seen_while_it_runs_and_nothing_is_left_of_it(
    worker: SimpleWorker, queue: Queue, connection: redis.Redis, working: Callable[..., None]
) -> None:
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        seen.update(redis_fields(worker), name=name, intermediate=queue.intermediate_queue.get_job_ids())
        [(job_id, execution_id)] = queue.started_job_registry.get_job_and_execution_ids()
        job = Job.fetch(job_id, connection=connection, serializer=JSONSerializer)
        execution = Execution.fetch(execution_id, job_id, connection)
        by = getattr(execution, "worker_name", job.worker_name)  # which RQ records from 2.11 on
        seen.update(job=job_id, status=job.get_status(), by=(job.worker_name, by))
        seen.update(executions=[each.id for each in job.get_executions()] == [execution_id])

    working(look)
    notify.notify(QUEUE)
    [waiting] = queue.job_ids
    serve(worker)
    assert (seen["name"], seen["job"], seen["current_job"]) == (QUEUE, waiting, waiting)
    assert (seen["state"], seen["status"], seen["by"]) == ("busy", "started", (worker.name, worker.name))
    assert seen["executions"]
    assert seen["intermediate"] == []
    assert records(connection) == set()
    after = redis_fields(worker)
    assert (after["state"], after["successful_job_count"], after["current_job"]) == ("idle", "1", None)
    assert float(after["total_working_time"]) > 0


def test_a_job_that_fails_is_listed_as_failed_and_the_next_one_is_served(
    worker: SimpleWorker, queue: Queue, connection: redis.Redis, working: Callable[..., None]
) -> None:
    calls: list[str] = []

    def fail_once(name: str) -> None:
        calls.append(name)
        if len(calls) == 1:
            notify.acknowledge(QUEUE)
            notify.notify(QUEUE)
            raise ZeroDivisionError("of the engine's")

    working(fail_once)
    notify.notify(QUEUE)
    serve(worker)
    assert len(calls) == 2
    [failed] = queue.failed_job_registry.get_job_ids()
    job = Job.fetch(failed, connection=connection, serializer=JSONSerializer)
    result = job.latest_result()
    assert result is not None
    assert "of the engine's" in str(result.exc_string)
    assert job.get_status() == "failed"
    assert queue.started_job_registry.count == 0
    after = redis_fields(worker)
    assert (after["failed_job_count"], after["successful_job_count"], after["state"]) == ("1", "1", "idle")


def test_workers_that_were_suspended_during_a_job_begin_no_other_one(
    worker: SimpleWorker, queue: Queue, connection: redis.Redis, working: Callable[..., None]
) -> None:
    calls: list[str] = []

    def work(name: str) -> None:
        calls.append(name)
        suspend(connection)
        notify.acknowledge(QUEUE)
        notify.notify(QUEUE)

    working(work)
    notify.notify(QUEUE)
    serve(worker)
    assert (len(calls), queue.count) == (1, 1)
    resume(connection)
    serve(SimpleWorker([queue], connection=connection))
    assert len(calls) == 2


def test_a_stop_while_the_end_of_a_job_is_noted_fails_no_job(
    worker: SimpleWorker, queue: Queue, working: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sign = worker.sign

    def work(name: str) -> None:
        calls.append(name)
        notify.acknowledge(QUEUE)
        notify.notify(QUEUE)  # the next job, which is for another worker
        monkeypatch.setattr(worker, "sign", stopped)

    def stopped(*args: Any) -> Any:
        monkeypatch.setattr(worker, "sign", sign)
        answers = sign(*args)
        worker.request_stop(signal.SIGTERM, None)  # type: ignore[no-untyped-call]  # RQ's own
        return answers

    working(work)
    notify.notify(QUEUE)
    serve(worker)
    assert (len(calls), queue.count) == (1, 1)
    assert queue.failed_job_registry.count == 0


def test_a_worker_whose_redis_was_flushed_during_a_job_is_known_again_and_idle(
    worker: SimpleWorker, connection: redis.Redis, working: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    working(lambda _name: connection.flushdb())
    dequeue = worker.dequeue_job_and_maintain_ttl

    def looking(*args: Any) -> Any:
        found = dequeue(*args)
        seen.append(redis_fields(worker))
        return found

    monkeypatch.setattr(worker, "dequeue_job_and_maintain_ttl", looking)
    notify.notify(QUEUE)
    serve(worker)
    assert (seen[-1]["state"], seen[-1]["queues"], int(seen[-1]["pid"])) == ("idle", QUEUE, worker.pid)


def test_a_users_own_job_of_the_same_function_keeps_its_result(
    worker: SimpleWorker, queue: Queue, working: Callable[..., None]
) -> None:
    working(lambda _name: None)
    job = queue.enqueue(JOB, QUEUE, result_ttl=60)
    serve(worker)
    assert job.get_status(refresh=True) == "finished"
    assert queue.finished_job_registry.count == 1


def test_a_stock_worker_leaves_nothing_of_a_job_either(
    queue: Queue, connection: redis.Redis, working: Callable[..., None]
) -> None:
    seen: list[str] = []

    def look(_name: str) -> None:
        job = get_current_job()
        assert job is not None
        seen.append(job.worker_name or "")  # by which the job asks whether the worker is to stop

    working(look)
    stock = rq.SimpleWorker([queue], connection=connection, serializer=JSONSerializer)
    notify.notify(QUEUE)
    stock.work(burst=True, logging_level="CRITICAL")
    assert seen == [stock.name]
    assert records(connection) == set()


def test_other_jobs_are_left_to_rq(worker: SimpleWorker, queue: Queue, settings: Any) -> None:
    settings.DURABLE = {"OTHER_JOBS": ["builtins.len"]}
    job = queue.enqueue("builtins.len", "four", result_ttl=60)
    serve(worker)
    assert (job.return_value(), redis_fields(worker)["successful_job_count"]) == (4, "1")
    assert queue.started_job_registry.count == 0


def test_a_worker_ends_whose_farewell_to_the_channel_of_commands_does_not(
    queue: Queue, connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with versions of redis-py in which a subscriber that has to connect anew waits for itself."""
    monkeypatch.setattr(rq_mixin, "UNSUBSCRIBE_TIMEOUT", 0.01)
    worker = SimpleWorker([queue], connection=connection)
    never, begun = threading.Event(), threading.Event()
    worker.subscribe()  # type: ignore[no-untyped-call]  # RQ's own
    assert worker.pubsub is not None
    unsubscribe = worker.pubsub.unsubscribe

    def wait() -> None:
        begun.set()
        assert never.wait(120)
        unsubscribe()  # type: ignore[no-untyped-call]  # RQ's own

    monkeypatch.setattr(worker.pubsub, "unsubscribe", wait)
    ending = threading.Thread(target=worker.teardown, daemon=True)
    ending.start()
    assert begun.wait(60)
    ending.join(120)
    has_ended = not ending.is_alive()
    never.set()
    for each in threading.enumerate():  # none may outlive its connection
        if each.name == "durable-farewell" or each is worker.pubsub_thread:
            each.join(120)
    assert has_ended


@pytest.mark.parametrize("of_the_bell", [True, False])
def test_signs_of_life_begin_when_the_execution_is_noted_and_end_before_its_end_is(
    worker: SimpleWorker,
    queue: Queue,
    connection: redis.Redis,
    working: Callable[[Callable[[str], object]], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    of_the_bell: bool,
) -> None:
    """The LeaseManager's thread beats whenever it likes: before and after, there is no execution to tell of."""
    seen: dict[str, Any] = {}
    sent: list[str] = []
    me = threading.get_ident()
    prepare, end, maintain = worker.prepare_execution, worker.cleanup_execution, worker.maintain_heartbeats

    def maintain_seen(*args: Any) -> None:
        maintain(*args)
        if threading.get_ident() == me:
            sent.append(args[0].id)

    def prepare_seen(job: Job) -> Execution:
        worker.beat()
        seen["before"] = len(sent)
        return prepare(job)

    def beat_amid(_queue: str) -> None:
        assert worker.execution is not None
        seen["key"] = worker.execution.key
        connection.hdel(seen["key"], "last_heartbeat")
        worker.beat()
        seen["amid"] = len(sent)
        assert connection.hexists(seen["key"], "last_heartbeat")

    def end_seen(*args: Any, **kwargs: Any) -> None:
        worker.beat()
        end(*args, **kwargs)
        worker.beat()

    working(beat_amid)
    worker.job_monitoring_interval = 0
    monkeypatch.setattr(worker, "maintain_heartbeats", maintain_seen)
    monkeypatch.setattr(worker, "prepare_execution", prepare_seen)
    monkeypatch.setattr(worker, "cleanup_execution", end_seen)
    if of_the_bell:
        notify.notify(QUEUE)
    else:
        queue.enqueue(JOB, QUEUE, result_ttl=60)
    serve(worker)
    worker.beat()
    assert (seen["before"], seen["amid"], len(sent)) == (0, 1, 1)
    assert connection.exists(seen["key"]) == 0
    assert queue.started_job_registry.get_job_ids() == []


def test_a_redis_that_does_not_answer_a_heartbeat_keeps_no_lease_from_being_renewed(
    worker: SimpleWorker, working: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The LeaseManager's thread calls the pulse."""
    has_begun, may_end = threading.Event(), threading.Event()
    seen: list[bool] = []

    def hang(*_: object) -> None:
        has_begun.set()
        seen.append(may_end.wait(120))

    def pulse_twice(_queue: str) -> None:
        assert worker.loop is not None
        pulse = worker.loop.leases.pulse
        assert pulse is not None
        pulse()
        assert has_begun.wait(120)
        pulse()
        assert seen == []
        may_end.set()

    worker.job_monitoring_interval = 0
    monkeypatch.setattr(worker, "maintain_heartbeats", hang)
    working(pulse_twice)
    notify.notify(QUEUE)
    serve(worker)
    assert seen[0]


def test_a_short_job_costs_no_heartbeat(
    worker: SimpleWorker, working: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(worker, "maintain_heartbeats", lambda *_: sent.append("beat"))
    working(lambda _queue: worker.beat())
    notify.notify(QUEUE)
    serve(worker)
    assert sent == []


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b"{}", b'{"command": ' + b"[" * 100_000, b"\xff"])
def test_a_command_that_cannot_be_read_is_ignored(
    worker: SimpleWorker, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """It is read in the thread that listens, which has to hear the next one."""
    worker.handle_payload({"data": data})
    assert "a command to the worker is ignored" in caplog.text
