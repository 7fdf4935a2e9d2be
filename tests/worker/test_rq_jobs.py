"""Which jobs durable's workers run: what others put into Redis runs nothing in them."""

from __future__ import annotations

import json
import pickle
import subprocess
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from rq import Queue
from rq.job import Job
from rq.registry import clean_registries
from rq.serializers import DefaultSerializer, JSONSerializer
from rq.utils import as_text

from durable.notifier import notify
from durable.notifier.enqueue import JOB
from durable.worker.rq import SimpleWorker, Worker

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_outages")]

QUEUE = "default"
HERE = "tests.worker.test_rq_jobs"
both = pytest.mark.parametrize("kind", [SimpleWorker, Worker])


def touch(path: str) -> str:
    Path(path).touch()
    return path


def touched(_job: Any, _connection: Any, *args: Any) -> None:
    """A callback of RQ's."""
    Path("/dev/null").touch()


class Toucher:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return touch, (self.path,)


#: What is put into a job's record: its data, and other fields.
ATTACKS: list[Callable[[str], Any]] = [
    lambda path: (["os.system", None, [f"touch {path}"], {}], {}),
    lambda path: ([f"{HERE}.touch", None, [path], {}], {}),
    lambda path: (["fulfil.delay", "instance", [path], {}], {}),
    lambda path: (["format", "{0}", [path], {}], {}),
    lambda path: ([JOB, None, [path], {}], {}),
    lambda path: ([JOB, None, [QUEUE, path], {}], {}),
    lambda path: ([JOB, None, [QUEUE], {"path": path}], {}),
    lambda path: ([JOB, "instance", [QUEUE], {}], {}),
    lambda path: ([None, None, [path], {}], {}),
    lambda path: ([["os.system"], None, [path], {}], {}),
    lambda path: ({"no": "list"}, {}),
    lambda path: ([JOB, None, [QUEUE], {}], {"success_callback_name": f"{HERE}.touched"}),
    lambda path: ([JOB, None, [QUEUE], {}], {"failure_callback_name": f"{HERE}.touched"}),
    lambda path: ([JOB, None, [QUEUE], {}], {"stopped_callback_name": f"{HERE}.touched"}),
    lambda path: (pickle.dumps((f"{HERE}.touch", None, (path,), {})), {}),
    lambda path: (pickle.dumps(Toucher(path)), {}),
    lambda path: (["os.system", None, [f"touch {path}"], {}], {"retries_left": "3", "repeats_left": "3"}),
]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What an attack leaves."""
    return tmp_path / "ran"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, marker: Path) -> None:
    """Durable's own job leaves a marker of its own, also from a forked work horse."""
    monkeypatch.setattr("durable.worker.rq_jobs.work", lambda _queue: marker.with_name("bell").touch())


def put(rq_redis: redis.Redis, data: bytes | list[Any], **fields: str) -> str:
    """Write to Redis as an intruder would, without RQ's library."""
    job_id = uuid.uuid4().hex
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    given: dict[Any, Any] = {
        "created_at": now,
        "enqueued_at": now,
        "status": "queued",
        "origin": QUEUE,
        "timeout": "-1",
        **fields,
    }
    text = data if isinstance(data, bytes) else json.dumps(data)
    rq_redis.hset(f"rq:job:{job_id}", mapping={"data": text, **given})
    rq_redis.rpush(f"rq:queue:{QUEUE}", job_id)
    return job_id


def serve(kind: Any, rq_redis: redis.Redis, *queues: Queue, **options: Any) -> None:
    given = queues or (Queue(QUEUE, connection=rq_redis, serializer=JSONSerializer),)
    kind([*given], connection=rq_redis, **options).work(burst=True, logging_level="CRITICAL")


def listed_as_failed(rq_redis: redis.Redis) -> list[str]:
    found: list[Any] = rq_redis.zrange(f"rq:failed:{QUEUE}", 0, -1)
    return [as_text(each) for each in found]


class TestAttacks:
    @both
    def test_what_is_not_ours_is_refused_and_the_worker_goes_on(
        self, kind: Any, rq_redis: redis.Redis, marker: Path, work: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        refused = []
        for attack in ATTACKS:
            data, fields = attack(str(marker))
            refused.append(put(rq_redis, data, **fields))
        notify.notify(QUEUE)
        serve(kind, rq_redis)
        assert not marker.exists()
        assert marker.with_name("bell").exists()
        assert sorted(listed_as_failed(rq_redis)) == sorted(refused)
        assert (rq_redis.llen(f"rq:queue:{QUEUE}"), rq_redis.exists(f"rq:scheduled:{QUEUE}")) == (0, 0)
        levels = [each.levelname for each in caplog.records if "refused job" in each.getMessage()]
        assert levels == ["ERROR"] * len(ATTACKS)

    @both
    @pytest.mark.parametrize("field", ["meta", "result"])
    def test_no_pickle_beside_the_data_is_read(
        self, kind: Any, field: str, rq_redis: redis.Redis, marker: Path, work: None
    ) -> None:
        put(rq_redis, [JOB, None, [QUEUE], {}], **{field: pickle.dumps(Toucher(str(marker)))})  # type: ignore[arg-type]
        serve(kind, rq_redis)
        assert not marker.exists()
        assert marker.with_name("bell").exists()

    @both
    @pytest.mark.parametrize("fields", [{"timeout": "soon"}, {"status": "odd"}, {"dependency_ids": "["}])
    def test_a_record_that_rq_cannot_read_is_dropped(
        self, kind: Any, fields: dict[str, str], rq_redis: redis.Redis, marker: Path, work: None
    ) -> None:
        put(rq_redis, ["os.system", None, [f"touch {marker}"], {}], **fields)
        notify.notify(QUEUE)
        serve(kind, rq_redis)
        assert (marker.exists(), marker.with_name("bell").exists()) == (False, True)

    @both
    def test_no_callback_of_a_job_that_was_never_taken_is_run(
        self, kind: Any, rq_redis: redis.Redis, marker: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RQ calls the failure callbacks of jobs in its list of started ones whose worker is gone."""
        monkeypatch.setattr(f"{HERE}.touched", lambda *args: marker.touch())
        job_id = put(rq_redis, [JOB, None, [QUEUE], {}], failure_callback_name=f"{HERE}.touched", status="started")
        rq_redis.delete(f"rq:queue:{QUEUE}")
        rq_redis.zadd(f"rq:wip:{QUEUE}", {f"{job_id}:execution": 1})
        worker = kind([Queue(QUEUE, connection=rq_redis, serializer=JSONSerializer)], connection=rq_redis)
        for queue in worker.queues:
            clean_registries(queue)
        assert rq_redis.zcard(f"rq:wip:{QUEUE}") == 0
        assert not marker.exists()

    def test_stock_rq_would_have_run_it(self, rq_redis: redis.Redis, marker: Path) -> None:
        """The attack is one."""
        put(rq_redis, ["os.system", None, [f"touch {marker}"], {}])
        serve(rq.SimpleWorker, rq_redis, serializer=JSONSerializer)
        assert marker.exists()


class TestOtherJobs:
    @both
    @pytest.mark.parametrize("entry", [f"{HERE}.touch", f"{HERE}.", "tests."])
    def test_what_the_setting_names_runs(
        self, kind: Any, entry: str, rq_redis: redis.Redis, marker: Path, settings: Any
    ) -> None:
        settings.DURABLE = {"OTHER_JOBS": [entry]}
        put(rq_redis, [f"{HERE}.touch", None, [str(marker)], {}])
        serve(kind, rq_redis)
        assert marker.exists()
        assert listed_as_failed(rq_redis) == []

    @pytest.mark.parametrize(
        "entries", [["tests.app.test_rq_job"], ["tests"], [f"{HERE}.touc"], ["test."], [""], ["."], ["os."]]
    )
    def test_what_is_only_like_a_name_of_the_setting_does_not(
        self, entries: list[str], rq_redis: redis.Redis, marker: Path, settings: Any
    ) -> None:
        settings.DURABLE = {"OTHER_JOBS": entries}
        put(rq_redis, [f"{HERE}.touch", None, [str(marker)], {}])
        serve(SimpleWorker, rq_redis)
        assert not marker.exists()

    @pytest.mark.parametrize("name", [f"{HERE}.subprocess.call", f"{HERE}.subprocess.os.system", f"{HERE}.Path.touch"])
    def test_what_an_allowed_module_has_imported_does_not(
        self, name: str, rq_redis: redis.Redis, marker: Path, settings: Any
    ) -> None:
        assert subprocess is not None  # imported for this
        settings.DURABLE = {"OTHER_JOBS": [f"{HERE}."]}
        refused = put(rq_redis, [name, None, [f"touch {marker}"], {}])
        serve(SimpleWorker, rq_redis)
        assert listed_as_failed(rq_redis) == [refused]
        assert not marker.exists()

    def test_its_callbacks_have_to_be_named_too(self, rq_redis: redis.Redis, marker: Path, settings: Any) -> None:
        settings.DURABLE = {"OTHER_JOBS": [f"{HERE}.touch"]}
        put(rq_redis, [f"{HERE}.touch", None, [str(marker)], {}], success_callback_name=f"{HERE}.touched")
        serve(SimpleWorker, rq_redis)
        assert not marker.exists()


class TestSerializers:
    """One worker serves a queue of JSON and one of pickles."""

    @pytest.fixture
    def queues(self, rq_redis: redis.Redis) -> tuple[Queue, Queue]:
        return (
            Queue(QUEUE, connection=rq_redis, serializer=JSONSerializer),
            Queue("mails", connection=rq_redis, serializer=DefaultSerializer),
        )

    @both
    def test_each_queue_is_read_with_its_own(
        self, kind: Any, rq_redis: redis.Redis, queues: Any, marker: Path, settings: Any
    ) -> None:
        settings.DURABLE = {"OTHER_JOBS": [f"{HERE}."]}
        own = queues[1].enqueue(touch, str(marker.with_name("mail")), meta={"day": datetime(2026, 1, 1, tzinfo=UTC)})
        refused = put(rq_redis, pickle.dumps(Toucher(str(marker))), origin="mails")
        serve(kind, rq_redis, *queues)
        assert not marker.exists()
        assert listed_as_failed(rq_redis) == [refused]
        assert marker.with_name("mail").exists()
        assert own.return_value(refresh=True) == str(marker.with_name("mail"))
        assert Job.fetch(own.id, connection=rq_redis).meta == {"day": datetime(2026, 1, 1, tzinfo=UTC)}

    @both
    def test_without_the_setting_no_queue_is_read_as_pickles(
        self, kind: Any, rq_redis: redis.Redis, queues: Any, marker: Path
    ) -> None:
        queues[1].enqueue(Toucher(str(marker)).__reduce__)
        serve(kind, rq_redis, *queues)
        assert not marker.exists()
        assert queues[1].failed_job_registry.count == 1

    def test_a_serializer_of_the_command_is_for_queues_without_json(
        self, rq_redis: redis.Redis, queues: Any, marker: Path, settings: Any
    ) -> None:
        settings.DURABLE = {"OTHER_JOBS": [f"{HERE}."]}
        refused = put(rq_redis, pickle.dumps(Toucher(str(marker))))
        serve(SimpleWorker, rq_redis, *queues, serializer="rq.serializers.PickleSerializer")
        assert listed_as_failed(rq_redis) == [refused]
        assert not marker.exists()
