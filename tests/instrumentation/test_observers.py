"""Observers: what each is called with, where, and that they break nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import pytest

from durable import AsyncContext, Context, signals, workflow
from durable.core.effects import Call
from durable.core.records import RunRecord
from durable.core.run_pass import PassOutcome
from durable.errors import RunConflictError
from durable.instrumentation import observers
from durable.instrumentation.observers import CallEnds, PassEnds, VerbCall
from durable.operations.holds import hold_starts
from durable.testing import Harness
from tests.core.driving import evicted_pass, threaded_pass
from tests.support.stores import in_force, passed

_place: ContextVar[str] = ContextVar("place", default="outside")


class Noting:
    """Notes its calls, and marks the context while a pass and a call are under way."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.wants = True

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        if not self.wants:
            return None
        self.notes.append(("pass", run.id))
        token = _place.set("in the pass")

        def ends(outcome: PassOutcome | None, error: BaseException | None) -> None:
            _place.reset(token)
            self.notes.append((outcome.state if outcome is not None else None, type(error).__name__))

        return ends

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds:
        self.notes.append(("call", call.info.location, call.is_rollback, _place.get()))
        token = _place.set(call.name)

        def ends(error: BaseException | None) -> None:
            _place.reset(token)
            self.notes.append(("called", call.info.location, type(error).__name__))

        return ends

    def run_started(self, run: RunRecord) -> None:
        self.notes.append(("started", run.id))


class Broken:
    """Fails at one of its turns."""

    def __init__(self, at: str) -> None:
        self.at = at

    def _turn(self, at: str) -> None:
        if at == self.at:
            raise RuntimeError(f"broken {at}")

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        self._turn("pass begins")
        return lambda _outcome, _error: self._turn("pass ends")

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds:
        self._turn("call begins")
        return lambda _error: self._turn("call ends")

    def run_started(self, run: RunRecord) -> None:
        self._turn("run started")

    def verb_begins(self, call: VerbCall) -> CallEnds:
        self._turn("verb begins")
        return lambda _error: self._turn("verb ends")


class NotingVerbs(Noting):
    """Notes verbs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.wants = False

    def run_started(self, run: RunRecord) -> None:
        """Note nothing."""

    def verb_begins(self, call: VerbCall) -> CallEnds:
        self.notes.append((call.action, call.about, list(call.runs)))

        def ends(error: BaseException | None) -> None:
            self.notes.append((call.action, list(call.runs), type(error).__name__))

        return ends


@pytest.fixture
def noting() -> Iterator[Noting]:
    found = Noting()
    observers.install(found)
    yield found
    observers.uninstall(found)


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness() as found:
        yield found


def where() -> str:
    return _place.get()


async def where_async() -> str:
    await asyncio.sleep(0)
    return _place.get()


def simple(ctx: Context) -> list[str]:
    return [ctx.step("a", where), ctx.step("b", where)]


async def simple_async(ctx: AsyncContext) -> list[str]:
    return [await ctx.step("a", where), await ctx.step("b", where_async), await ctx.step("c", lambda: where_async())]


def test_a_pass_and_its_calls_are_observed_in_their_context(h: Harness, noting: Noting) -> None:
    handle = h.start(simple, id="one")
    assert h.finish(handle).output == ["a", "b"]
    assert noting.notes == [
        ("started", "one"),
        *(("pass", "one"), ("call", "a", False, "in the pass"), ("called", "a", "NoneType")),
        *(("call", "b", False, "in the pass"), ("called", "b", "NoneType"), ("completed", "NoneType")),
    ]
    assert where() == "outside"


def test_so_are_those_of_an_async_workflow(h: Harness, noting: Noting) -> None:
    assert h.finish(h.start(simple_async)).output == ["a", "b", "c"]
    assert len([each for each in noting.notes if each[0] == "called"]) == 3


def test_replay_calls_nothing(h: Harness, noting: Noting) -> None:
    def sleeping(ctx: Context) -> None:
        ctx.step("a", where)
        ctx.sleep("nap", 60)

    h.finish(h.start(sleeping, id="one"))
    calls = [each[:2] for each in noting.notes if each[0] in ("pass", "call")]
    assert calls == [("pass", "one"), ("call", "a"), ("pass", "one")]


def test_a_failure_and_a_compensation_are_observed(h: Harness, noting: Noting) -> None:
    def failing(ctx: Context) -> None:
        ctx.rollback_checkpoint("from here")
        ctx.step("charge", where, rollback=_undo)
        ctx.step("fail", _fail, max_retries=0)

    h.finish(h.start(failing))
    assert ("called", "fail", "ValueError") in noting.notes
    assert [each[1:3] for each in noting.notes if each[0] == "call"] == [
        *(("charge", False), ("fail", False), ("charge", True)),
    ]
    assert noting.notes[-1] == ("failed", "NoneType")


def test_branches_in_threads_are_observed_below_their_pass(h: Harness, noting: Noting) -> None:
    def joining(ctx: Context) -> Any:
        return ctx.join("both", {"x": lambda c: c.step("s", where), "y": lambda c: c.step("s", where)})

    handle = h.start(joining)
    assert threaded_pass(h, handle.id).output == {"x": "s", "y": "s"}
    assert {each for each in noting.notes if each[0] == "call"} == {
        ("call", "both/x/s", False, "in the pass"),
        ("call", "both/y/s", False, "in the pass"),
    }


def test_an_eviction_is_observed(h: Harness, noting: Noting) -> None:
    handle = h.start(simple)
    evicted_pass(h, handle.id, when=lambda: True, after_begin=True)
    assert noting.notes[-1] == ("pending", "NoneType")


def test_one_that_does_not_want_a_pass_is_not_called_for_its_calls(h: Harness, noting: Noting) -> None:
    noting.wants = False
    handle = h.start(simple)
    assert h.finish(handle).output == ["outside", "outside"]
    assert noting.notes == [("started", handle.id)]


@pytest.fixture
def verbs() -> Iterator[NotingVerbs]:
    found = NotingVerbs()
    observers.install(found)
    yield found
    observers.uninstall(found)


def test_verbs_are_observed_with_those_that_they_call(h: Harness, verbs: NotingVerbs) -> None:
    """A start knows its runs at its end; one that fails has its error."""
    handle = h.start(child.using(id="one", key="a"))
    handle.pause()
    child.using(key="a").start_or_send("word", 1)
    with pytest.raises(RunConflictError):
        h.start(child.using(id="one"), 7)
    assert verbs.notes == [
        ("start", "observed.child", []),
        ("start", ["one"], "NoneType"),
        ("pause", "", ["one"]),
        ("pause", ["one"], "NoneType"),
        ("start_or_send", "observed.child", []),
        ("start", "observed.child", []),
        ("start", ["one"], "NoneType"),
        ("send", "word", ["one"]),
        ("send", ["one"], "NoneType"),
        ("start_or_send", ["one"], "NoneType"),
        ("start", "observed.child", []),
        ("start", [], "RunConflictError"),
    ]


@pytest.mark.parametrize(
    "at", ["run started", "pass begins", "pass ends", "call begins", "call ends", "verb begins", "verb ends"]
)
def test_a_broken_observer_breaks_nothing_and_keeps_nothing_from_the_others(
    h: Harness, noting: Noting, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    broken = Broken(at)
    observers.install(broken)
    try:
        assert h.finish(h.start(simple)).output == ["a", "b"]
    finally:
        observers.uninstall(broken)
    assert f"broken {at}" in caplog.text
    assert len(noting.notes) == 7


@workflow(name="observed.child")
def child(ctx: Context, number: int = 0) -> int:
    return ctx.step("number", lambda: number)


@workflow(name="observed.parent")
def parent(ctx: Context, size: int) -> Any:
    started = ctx.start_child("started", child)
    ctx.join("both", {name: lambda c: c.child("called", child) for name in ("a", "b")})
    outputs = ctx.map("mapped", child, [(number,) for number in range(size)], at_once=100).outputs
    ctx.step("wait", where)
    return [started.result("read"), len(outputs)]


@workflow(name="observed.async_parent")
async def async_parent(ctx: AsyncContext, size: int) -> Any:
    started = await ctx.start_child("started", child)
    await ctx.join("both", {name: lambda c: c.child("called", child) for name in ("a", "b")})
    outputs = (await ctx.map("mapped", child, [(number,) for number in range(size)], at_once=100)).outputs
    return [await started.result("read"), len(outputs)]


def changes(seen: list[tuple[str, str, str]]) -> Callable[..., None]:
    def receiver(*, run: str, state: str, previous: str, **_: Any) -> None:
        seen.append((run, state, previous))

    return receiver


@pytest.mark.parametrize("family", [parent, async_parent])
@pytest.mark.parametrize("size", [3, 1_001])
def test_each_child_that_a_pass_starts_is_told_once_as_a_new_run(
    h: Harness, noting: Noting, family: Any, size: int
) -> None:
    seen: list[tuple[str, str, str]] = []
    receiver = changes(seen)
    signals.run_changed.connect(receiver)
    try:
        run = family.using(id="p").start(size)
        assert h.finish(run).output == [0, size]
    finally:
        signals.run_changed.disconnect(receiver)
    children = sorted(each.id for each in run.children())
    assert len(children) == 3 + size
    assert sorted(each[1] for each in noting.notes if each[0] == "started") == sorted(["p", *children])
    assert sorted(each for each in seen if not each[2]) == sorted((each, "pending", "") for each in ["p", *children])
    assert all(seen.index((each, "pending", "")) < seen.index((each, "completed", "running")) for each in children)


def test_a_child_whose_start_is_refused_is_told_as_no_new_run(h: Harness, noting: Noting) -> None:
    def refused(ctx: Context) -> str:
        try:
            ctx.child("a", child.using(id="taken"))
        except RunConflictError:
            return "refused"
        return ""

    simple_run = h.start(simple, id="taken")
    assert h.finish(h.start(refused, id="p")).output == "refused"
    assert [each for each in noting.notes if each[0] == "started"] == [("started", simple_run.id), ("started", "p")]


@pytest.mark.django_db
def test_a_child_whose_workflow_is_held_is_told_as_paused() -> None:
    seen: list[tuple[str, str, str]] = []
    receiver = changes(seen)
    with in_force() as at:
        hold_starts("observed.child")
        run = parent.using(id="p").start(3)
        signals.run_changed.connect(receiver)
        try:
            passed(at, run.id)
        finally:
            signals.run_changed.disconnect(receiver)
    assert [each for each in seen if not each[2]] == [
        (each, "paused", "") for each in ("p:started", "p:both:a:called", "p:both:b:called")
    ]


def _undo(_rollback: Any, _output: Any) -> None: ...


def _fail() -> None:
    raise ValueError("no")
