"""Attributes of other conventions on the spans of durable (`durable-django[tracing]`), beside its own.

    class ShopConfig(AppConfig):
        def ready(self):
            also_named(WorkflowNames(), GenAINames(workflows=["shop.agent"], tools=["search"]))

Owns the names, and an observer that sets them on the span of the pass or call which `durable.instrumentation.tracing`
has begun. Makes no span, renames none, and must not set payloads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from opentelemetry import trace

from durable.core.effects import Call
from durable.core.records import RunRecord
from durable.core.run_pass import PassOutcome
from durable.instrumentation import observers, tracing
from durable.instrumentation.observers import Observer, PassEnds

__all__ = ["GenAINames", "Names", "WorkflowNames", "also_named"]

Attributes = Mapping[str, str | int]


class Names(Protocol):
    """A convention: what it calls a pass, its end, and the call of a step's function."""

    def of_pass(self, run: RunRecord) -> Attributes:
        """Return the attributes of a pass."""

    def of_end(self, run: RunRecord, outcome: PassOutcome) -> Attributes:
        """Return the attributes that a pass gets at its end."""

    def of_call(self, run: RunRecord, call: Call) -> Attributes:
        """Return the attributes of a call."""


@dataclass(frozen=True, slots=True)
class WorkflowNames:
    """`workflow.*`, as several workflow engines name their spans. No convention of OpenTelemetry has these names."""

    def of_pass(self, run: RunRecord) -> Attributes:
        return {"workflow.name": run.workflow, "workflow.run.id": run.id}

    def of_end(self, run: RunRecord, outcome: PassOutcome) -> Attributes:
        """Return the state in which the pass has left the run."""
        return {"workflow.run.status": str(outcome.state)}

    def of_call(self, run: RunRecord, call: Call) -> Attributes:
        """Return the names of the workflow, the run and the step, and the number of the attempt."""
        step = {"workflow.step.name": call.name, "workflow.step.id": call.info.location}
        return {**self.of_pass(run), **step, "workflow.step.attempt": call.info.attempt}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenAINames:
    """`gen_ai.*` of OpenTelemetry's semantic conventions for generative AI, which are in development.

    A pass of one of the `workflows` is an `invoke_workflow`, and in such a pass the call of a step with one of the
    names in `tools` is an `execute_tool`. A name that ends with a dot stands for all that begin so ("agents.").
    """

    workflows: Collection[str]
    tools: Collection[str] = ()

    def of_pass(self, run: RunRecord) -> Attributes:
        if not _is_among(run.workflow, self.workflows):
            return {}
        return {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": run.workflow}

    def of_end(self, run: RunRecord, outcome: PassOutcome) -> Attributes:
        """Return the class of the error because of which the run has failed in this pass."""
        is_told = outcome.error is not None and _is_among(run.workflow, self.workflows)
        return {"error.type": outcome.error.type} if is_told and outcome.error is not None else {}

    def of_call(self, run: RunRecord, call: Call) -> Attributes:
        """Return the operation and the name of the tool; nothing for a step that is none."""
        if call.is_rollback or not (_is_among(run.workflow, self.workflows) and _is_among(call.name, self.tools)):
            return {}
        return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name}


def _is_among(name: str, names: Collection[str]) -> bool:
    return any(name == each or (each.endswith(".") and name.startswith(each)) for each in names)


def also_named(*names: Names) -> None:
    """Set the attributes of these conventions on durable's spans too, from the next pass on.

    Call it once, in an app's `ready`.
    """
    tracing.set_up()  # first: the span has to be there
    observers.install(_Naming(names))


class _Naming(Observer):
    """The observer."""

    def __init__(self, names: Collection[Names]) -> None:
        self._names = names

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        """Name the span of the pass; return None if it is not recorded."""
        span = trace.get_current_span()
        if not span.is_recording():
            return None
        for each in self._names:
            span.set_attributes(each.of_pass(run))

        def ends(outcome: PassOutcome | None, error: BaseException | None) -> None:
            if outcome is not None:
                for each in self._names:
                    span.set_attributes(each.of_end(run, outcome))

        return ends

    def call_begins(self, run: RunRecord, call: Call) -> None:
        span = trace.get_current_span()
        for each in self._names:
            span.set_attributes(each.of_call(run, call))
