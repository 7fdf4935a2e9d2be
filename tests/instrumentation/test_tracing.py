"""Spans of passes and steps, as OpenTelemetry's own SDK records them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from durable import AsyncContext, Context, workflow
from durable.core.witnesses import is_of_first_claim
from durable.instrumentation import observers, tracing
from durable.instrumentation.tracing import Tracing, run_context
from durable.testing import Harness
from tests.core.driving import evicted_pass, threaded_pass


class Spans:
    """A tracer's provider, and what it recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    found.tracing.connect()
    yield found
    found.tracing.disconnect()


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness() as found:
        yield found


def work() -> str:
    """A step's function, with instrumentation of its own."""
    with trace.get_tracer("somebody", tracer_provider=_provider[-1]).start_as_current_span("query"):
        return "done"


async def work_async() -> str:
    return work()


def fail() -> None:
    raise ValueError("no money")


_provider: list[TracerProvider] = []


@pytest.fixture(autouse=True)
def _own_instrumentation(spans: Spans) -> Iterator[None]:
    _provider.append(spans.provider)
    yield
    _provider.pop()


@workflow(name="tests.tracing.napping")
def napping(ctx: Context) -> None:
    ctx.step("before", work)
    ctx.sleep("nap", "1 hour")
    ctx.step("after", work)


@workflow(name="tests.tracing.with_child")
def with_child(ctx: Context) -> None:
    ctx.child("nap", napping)


async def going(ctx: AsyncContext) -> None:
    await ctx.step("one", work_async)
    await ctx.step("two", work)


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def links(span: ReadableSpan) -> dict[Any, tuple[int, int]]:
    return {
        (link.attributes or {})["durable.link"]: (link.context.trace_id, link.context.span_id) for link in span.links
    }


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == ids(parent)


class TestPasses:
    def test_each_pass_is_a_trace_and_each_step_a_span_in_it(self, h: Harness, spans: Spans) -> None:
        h.finish(napping.using(id="one").start())
        first, second = spans.named("pass tests.tracing.napping")
        assert (first.parent, second.parent, first.kind) == (None, None, SpanKind.CONSUMER)
        assert ids(first)[0] != ids(second)[0]
        assert is_child(spans.one("step before"), first)
        assert is_child(spans.one("step after"), second)
        for query, name in zip(spans.named("query"), ("step before", "step after"), strict=True):
            assert is_child(query, spans.one(name))
        assert first.attributes is not None
        attributes = {**first.attributes}
        assert is_of_first_claim(int(str(attributes.pop("durable.fence"))))
        assert attributes == {
            "durable.run.id": "one",
            "durable.workflow": "tests.tracing.napping",
            "durable.queue": "default",
            "durable.worker": "harness",
            "durable.late_seconds": 0.0,
            "durable.run.state": "sleeping",
        }
        assert second.attributes is not None
        assert second.attributes["durable.run.state"] == "completed"

    def test_passes_are_linked_to_their_run_and_to_the_pass_before(self, h: Harness, spans: Spans) -> None:
        h.finish(napping.using(id="one").start())
        h.finish(napping.using(id="two").start())
        first, second, other, _ = spans.named("pass tests.tracing.napping")
        run = (run_context("one").trace_id, run_context("one").span_id)
        assert links(first) == {"run": run}
        assert links(second) == {"run": run, "previous pass": ids(first)}
        assert links(other)["run"] not in (run, None)

    def test_another_process_links_to_the_same_run(self, h: Harness, spans: Spans) -> None:
        handle = napping.using(id="one").start()
        h.settle()
        spans.tracing._newest.clear()  # as in a process that has not passed it
        h.finish(handle)
        first, second = spans.named("pass tests.tracing.napping")
        assert links(first) == links(second)

    def test_what_is_remembered_is_bounded(self, h: Harness, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tracing, "REMEMBERED", 2)
        for run_id in ("a", "b", "c"):
            napping.using(id=run_id).start()
        h.settle()
        assert list(spans.tracing._newest) == ["b", "c"]

    def test_the_span_that_started_the_run_is_linked(self, h: Harness, spans: Spans) -> None:
        with spans.provider.get_tracer("web").start_as_current_span("request"):
            napping.using(id="one").start()
        run = (run_context("one").trace_id, run_context("one").span_id)
        assert links(spans.one("request")) == {"started run": run}

    def test_a_pass_is_linked_to_the_child_that_it_has_started(self, h: Harness, spans: Spans) -> None:
        h.finish(h.start(with_child.using(id="p")))
        run = (run_context("p:nap").trace_id, run_context("p:nap").span_id)
        first, second = spans.named("pass tests.tracing.with_child")
        assert links(first)["started run"] == run
        assert "started run" not in links(second)

    def test_a_pass_is_no_part_of_the_trace_that_it_happens_in(self, h: Harness, spans: Spans) -> None:
        napping.start()
        with spans.provider.get_tracer("rq").start_as_current_span("job"):
            h.settle()
        assert spans.one("pass tests.tracing.napping").parent is None
        assert spans.one("job").links == ()

    def test_an_eviction_is_no_error(self, h: Harness, spans: Spans) -> None:
        handle = napping.start()
        evicted_pass(h, handle.id, when=lambda: True, after_begin=True)
        span = spans.one("pass tests.tracing.napping")
        assert (span.status.status_code, (span.attributes or {})["durable.run.state"]) == (StatusCode.UNSET, "pending")


class TestCalls:
    def test_in_an_async_workflow(self, h: Harness, spans: Spans) -> None:
        h.finish(h.start(going))
        one, two = spans.one("step one"), spans.one("step two")
        assert is_child(one, spans.one("pass harness.going"))
        assert is_child(two, spans.one("pass harness.going"))
        assert [is_child(query, step) for query, step in zip(spans.named("query"), (one, two), strict=True)] == [
            True
        ] * 2

    def test_in_the_threads_of_branches(self, h: Harness, spans: Spans) -> None:
        def joining(ctx: Context) -> None:
            ctx.join("both", {"x": lambda c: c.step("s", work), "y": lambda c: c.step("s", work)})

        handle = h.start(joining)
        threaded_pass(h, handle.id)
        steps = spans.named("step s")
        assert {(step.attributes or {})["durable.location"] for step in steps} == {"both/x/s", "both/y/s"}
        assert all(is_child(step, spans.one("pass harness.joining")) for step in steps)

    def test_a_failure_tells_its_error_at_each_attempt(self, h: Harness, spans: Spans) -> None:
        h.finish(h.start(lambda ctx: ctx.step("charge", fail, max_retries=1)))
        attempts = spans.named("step charge")
        assert [(each.attributes or {})["durable.attempt"] for each in attempts] == [1, 2]
        for each in attempts:
            assert each.status.status_code == StatusCode.ERROR
            assert each.status.description == "ValueError: no money"
            assert [event.name for event in each.events] == ["exception"]
        first, last = spans.named("pass harness.lambda")
        assert (first.status.status_code, last.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
        assert "no money" in str(last.status.description)


def test_without_anything_that_records_there_is_no_span_and_no_call_is_watched(h: Harness) -> None:
    """The API alone, without an SDK: what the process of these tests has."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    handle = napping.start()
    record = h._store.get(handle.id)
    assert record is not None
    assert Tracing().pass_begins(record, h.now) is None
    observed = [each for each in observers._installed if isinstance(each, Tracing)]
    assert len(observed) == 2  # this file's own, and the one that the app has installed
