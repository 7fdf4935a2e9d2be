"""Text that breaks things, wherever a user's text can come in: it is stored as it is, or refused clearly at once."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from durable import Break, Context, Continue, get_run, workflow
from durable.core import location
from durable.core.ids import check_id, check_key, check_limit, check_queue
from durable.core.messages import check_queue_of_send
from durable.errors import PayloadError, RunCancelledError, RunNotFoundError
from durable.models import Run
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = {
    "nul": "a\x00b",
    "lone surrogate": "\ud800",
    "right to left": "a\u202ecod.exe",
    "html": "<script>alert('1')</script>",
    "sql": "'; DROP TABLE durable_run; --%s %(run)s",
    "line": "one\n2026-01-01 ERROR durable: all is lost\r\x1b[2J",
    "substitute": "\x1a0000\x1a",
    "path": "../~0/%2F*",
}
BIG = "x" * 10_000_000
#: What a refusal may be; anything else is an accident.
REFUSALS = (TypeError, ValueError, PayloadError)


@workflow(name="faults.hostile")
def hostile(ctx: Context, text: str) -> str:
    def fail(_text: str) -> None:
        raise RuntimeError(text)

    step = ctx.try_step(text, fail, text, max_retries=0)
    wait = ctx.queue.next(f"wait {text}", names=[text], timeout="1 day")
    ctx.join(f"join {text}", {text: lambda c: c.step("inner", lambda: text)})
    assert step.failure is not None
    return "|".join([step.failure.error.message, wait.name, str(wait.body)])


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_names_payloads_errors_and_queues_of_messages_hold_any_text(text: str) -> None:
    handle = hostile.start(text)
    handle.send(text, text)
    assert pass_once(handle).state == "completed"
    assert handle.output == f"{text}|{text}|{text}"
    history = handle.history()
    assert location.unescape(history[0].location) == text
    assert history[0].error is not None
    assert history[0].error.message == text


class Word(str, enum.Enum):  # noqa: UP042  # whose str() is "Word.GO", where that of a StrEnum is "go"
    GO = "go"
    HIGH = "high"
    TURN = "turn"


_made: list[int] = []


@workflow(name="faults.members")
def members(ctx: Context) -> Any:
    def once(c: Context, number: int) -> Break | Continue:
        c.step(Word.GO, _made.append, number)
        c.sleep("rest", 60)
        return Break(number) if number else Continue(number + 1)

    ctx.step(Word.HIGH, _made.append, -1)
    ctx.publish(Word.GO, 1)
    ctx.loop(Word.TURN, once, state=0)
    ctx.join("both", {Word.GO: lambda c: c.sleep("rest", 60), "other": lambda c: c.step(Word.GO, _made.append, 2)})
    ctx.queue.send(Word.TURN, "sent")
    return [ctx.queue.next(Word.GO).body, ctx.queue.next("turned", names=[Word.TURN]).body]


@pytest.mark.parametrize("codec", ["durable.codec.JsonCodec", "durable.crypto.FernetCodec"])
def test_a_member_of_an_enumeration_names_what_its_text_names(codec: str, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "CODEC": codec, "ENCRYPTION_KEYS": [b"a" * 43 + b"="]}
    _made.clear()
    handle = members.using(id=Word.GO, key=Word.TURN, queue=Word.HIGH).start()
    assert members.using(key="turn").start().id == handle.id == Run.objects.get(queue="high").id == "go"
    handle.send(Word.GO, "received")
    for _ in range(4):
        if pass_once(handle).state == "sleeping":
            handle.wake(end_sleeps=True)
    assert handle.output == ["received", "sent"], handle.error
    assert _made == [-1, 0, 1, 2]
    assert "go" in [each.location for each in handle.history()]
    assert not [each.location for each in handle.history() if "Word" in each.location]


@pytest.mark.parametrize("check", [check_id, check_key, check_limit, check_queue, check_queue_of_send, location.escape])
def test_what_is_checked_is_plain_text(check: Callable[[str], str]) -> None:
    assert f"{check(Word.GO)}" == "go"


def ways_in(text: str) -> dict[str, Callable[[], Any]]:
    handle = hostile.start("calm")
    return {
        "id": lambda: hostile.using(id=text).start("x").id,
        "queue": lambda: Run.objects.get(pk=hostile.using(queue=text).start("x").id).queue,
        "input": lambda: (hostile.start(text), text)[1],
        "message queue": lambda: handle.send(text, 1) and text,
        "body": lambda: handle.send("q", text) and text,
        "message id": lambda: handle.send("q", 1, id=text) and text,
    }


WAYS_IN = ["id", "queue", "input", "message queue", "body", "message id"]


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("text", [*HOSTILE.values(), BIG], ids=[*HOSTILE, "10 MB"])
def test_text_is_stored_as_it_is_or_refused_clearly(text: str, way: str) -> None:
    before = Run.objects.count()
    try:
        stored = ways_in(text)[way]()
    except REFUSALS as error:
        refusal = str(error)
    else:
        assert stored == text
        return
    assert text is BIG or way in ("id", "queue", "message id")
    assert len(refusal) < 1000
    assert refusal.isprintable()
    assert Run.objects.count() == before + 1


@pytest.mark.parametrize("value", [None, 1, b"x", ["a"], object()], ids=lambda value: type(value).__name__)
def test_what_is_no_text_is_refused_by_name(value: Any) -> None:
    handle = hostile.start("calm")
    calls: list[Callable[[], Any]] = [lambda: handle.cancel(reason=value), lambda: handle.send(value, 1)]
    if value is not None:  # where a default stands behind it
        calls += [
            lambda: hostile.using(queue=value).start("x"),
            lambda: hostile.using(id=value).start("x"),
            lambda: handle.send("q", 1, id=value),
        ]
    for call in calls:
        with pytest.raises(TypeError, match="text"):
            call()
    assert handle.state == "pending"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_reason_is_kept_as_it_is(text: str) -> None:
    handle = hostile.start("calm")
    handle.cancel(reason=text)
    with pytest.raises(RunCancelledError) as raised:
        handle.result(timeout=0)
    assert str(raised.value).endswith(text)


def test_a_reason_of_10_mb_is_refused_and_nothing_is_cancelled() -> None:
    handle = hostile.start("calm")
    with pytest.raises(ValueError, match="at most 10,000 characters"):
        handle.cancel(reason=BIG)
    assert handle.state == "pending"
    handle.cancel(reason="y" * 10_000)
    assert len(Run.objects.get(pk=handle.id).summary) < 300


@pytest.mark.parametrize("text", [*HOSTILE.values(), BIG], ids=[*HOSTILE, "10 MB"])
def test_an_id_that_cannot_be_one_is_not_found(text: str) -> None:
    with pytest.raises(RunNotFoundError) as raised:
        get_run(text)
    assert len(str(raised.value)) < 1000


@workflow(name="faults.loud")
def loud(ctx: Context, size: int) -> None:
    def fail() -> None:
        raise RuntimeError("x" * size)

    ctx.step("fail", fail, max_retries=0)


def test_an_error_of_10_mb_is_kept_in_short() -> None:
    handle = loud.start(10_000_000)
    assert pass_once(handle).state == "failed"
    [entry] = handle.history()
    assert entry.error is not None
    assert len(entry.error.message) < 20_000
    run = Run.objects.get(pk=handle.id)
    assert run.error is not None
    assert len(run.error.message) + len(run.error.traceback) < 200_000
    assert len(run.summary) < 1000
