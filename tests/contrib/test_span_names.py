"""Attributes of other conventions on durable's spans, as OpenTelemetry's SDK records them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from durable import Context, CriticalError, RollbackContext, workflow
from durable.contrib.span_names import GenAINames, Names, WorkflowNames, also_named
from durable.instrumentation import observers
from durable.instrumentation.tracing import Tracing
from durable.testing import Harness

#: The attributes by the name of the span, in the order of the spans' ends.
Named = Callable[[], list[tuple[str, dict[str, object]]]]


def undo(rollback: RollbackContext, output: str) -> None:
    pass


def refuse() -> None:
    raise CriticalError("no tool is left")


@workflow(name="tests.contrib.agent")
def agent(ctx: Context) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("search", str.upper, "tea", rollback=undo)
    ctx.step("note", str.lower, "TEA")
    ctx.step("refuse", refuse)
    return "done"


@workflow(name="tests.contrib.no_agent")
def no_agent(ctx: Context) -> str:
    return ctx.step("search", str.upper, "tea")


@pytest.fixture
def naming() -> Iterator[Callable[..., Named]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    tracing.connect()
    before = observers._installed

    def begin(*names: Names) -> Named:
        also_named(*names)

        def named() -> list[tuple[str, dict[str, object]]]:
            own = ("durable.", "exception.")
            return [
                (
                    each.name,
                    {name: value for name, value in (each.attributes or {}).items() if not name.startswith(own)},
                )
                for each in exporter.get_finished_spans()
            ]

        return named

    yield begin
    for each in observers._installed:
        if each not in before:
            observers.uninstall(each)
    tracing.disconnect()


def test_spans_have_the_names_of_other_workflow_engines_beside_their_own(naming: Callable[..., Named]) -> None:
    named = naming(WorkflowNames())
    with Harness() as h:
        h.finish(no_agent.using(id="a-1").start())
    of_run = {"workflow.name": "tests.contrib.no_agent", "workflow.run.id": "a-1"}
    step = {"workflow.step.name": "search", "workflow.step.id": "search", "workflow.step.attempt": 1}
    assert named() == [
        ("step search", {**of_run, **step}),
        ("pass tests.contrib.no_agent", {**of_run, "workflow.run.status": "completed"}),
    ]


def test_only_what_is_named_so_is_of_generative_ai(naming: Callable[..., Named]) -> None:
    named = naming(GenAINames(workflows=["tests.contrib.agent"], tools=["search"]))
    with Harness() as h:
        h.finish(agent.start())
        h.finish(no_agent.start())
    whole = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "tests.contrib.agent"}
    assert [each for each in named() if each[0].startswith(("step", "rollback"))] == [
        ("step search", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}),
        ("step note", {}),
        ("step refuse", {}),
        ("rollback rollback of search", {}),
        ("step search", {}),
    ]
    passes = [attributes for name, attributes in named() if name == "pass tests.contrib.agent"]
    assert passes[-1] == {**whole, "error.type": "CriticalError"}
    assert ("pass tests.contrib.no_agent", {}) in named()


def test_a_name_with_a_dot_at_its_end_stands_for_all_that_begin_so(naming: Callable[..., Named]) -> None:
    named = naming(GenAINames(workflows=["tests.contrib."], tools=["se."]))
    with Harness() as h:
        h.finish(no_agent.start())
    operations = [attributes.get("gen_ai.operation.name") for _, attributes in named()]
    assert operations == [None, "invoke_workflow"]


def test_several_conventions_stand_beside_each_other(naming: Callable[..., Named]) -> None:
    named = naming(WorkflowNames(), GenAINames(workflows=["tests.contrib.no_agent"]))
    with Harness() as h:
        h.finish(no_agent.start())
    assert {"workflow.name", "gen_ai.workflow.name"} <= dict(named())["pass tests.contrib.no_agent"].keys()
