"""OpenTelemetry spans of passes and steps, where the API is installed (`durable-django[tracing]`); nothing otherwise.

Owns these spans. Each pass is a span in a trace of its own, because a run may sleep for a month between two passes.
Each call of a step's function is a child of it, and the spans of the function's own instrumentation are children of
that. The passes of a run are linked:

- all of them to one context that is derived from the run's id, on any worker: traces that link to the same trace id
  belong to the same run. The span that started the run links to it too. No span has this context itself.
- to the span of the previous pass, if that was in this process.

The sampler decides as usual which spans are recorded. Attributes name runs, workflows and locations. They must not
contain payloads, but the text of an error is included.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import datetime
from functools import cached_property
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from durable.core.effects import Call
from durable.core.records import RunRecord, RunState
from durable.core.run_pass import PassOutcome
from durable.instrumentation import observers
from durable.instrumentation.observers import CallEnds, PassEnds, lateness

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

REMEMBERED = 10_000  # runs to remember the newest pass of, in this process

_installed: list[Tracing] = []


def set_up() -> None:
    """Trace in this process, if the API is installed. Further calls do nothing."""
    if _installed or not _has_api():
        return
    _installed.append(Tracing())
    _installed[0].connect()


def _has_api() -> bool:
    """Return whether the API is installed, and not another package of OpenTelemetry alone. Imports neither."""
    found = find_spec("opentelemetry")
    places = None if found is None else found.submodule_search_locations
    return places is not None and PathFinder.find_spec("opentelemetry.trace", places) is not None


def run_context(run_id: str) -> SpanContext:
    """Return the context to which all passes of the run link."""
    from opentelemetry.trace import SpanContext, TraceFlags

    digest = _digest(run_id)
    return SpanContext(
        trace_id=int(trace_id_of(run_id), 16),
        span_id=int.from_bytes(digest[16:24]) or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def trace_id_of(run_id: str) -> str:
    """Return the trace id of `run_context`, as 32 hexadecimal digits; without the API too."""
    return f"{int.from_bytes(_digest(run_id)[:16]) or 1:032x}"


def _digest(run_id: str) -> bytes:
    return hashlib.sha256(b"durable.run:" + run_id.encode(errors="surrogatepass")).digest()


class Tracing:
    """Creates the spans. `provider` defaults to OpenTelemetry's global one."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._newest: OrderedDict[str, SpanContext] = OrderedDict()

    @cached_property
    def _api(self) -> Any:
        """The API. Imported at the first pass or start, not in every process that sets up Django."""
        from opentelemetry import trace

        return trace

    @cached_property
    def _tracer(self) -> Any:
        return self._api.get_tracer("durable", tracer_provider=self._provider)

    def connect(self) -> None:
        observers.install(self)

    def disconnect(self) -> None:
        observers.uninstall(self)

    # -- passes

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        """Begin the span of a pass; return None if nothing is set up that would record it."""
        if not self._is_recording():
            return None
        from opentelemetry import context, trace

        span = self._tracer.start_span(
            f"pass {run.workflow}",
            context=context.Context(),  # a trace of its own: the surrounding RQ job covers other runs too
            kind=trace.SpanKind.CONSUMER,
            links=self._links(run.id),
            attributes={
                "durable.run.id": run.id,
                "durable.workflow": run.workflow,
                "durable.queue": run.queue,
                "durable.worker": run.worker,
                "durable.fence": run.fence,
            },
        )
        if (late := lateness(run, now)) is not None:
            span.set_attribute("durable.late_seconds", late)
        self._remember(run.id, span.get_span_context())
        leave = _entered(span)

        def ends(outcome: PassOutcome | None, error: BaseException | None) -> None:
            if outcome is not None:
                span.set_attribute("durable.run.state", str(outcome.state))
            if outcome is not None and outcome.state == RunState.FAILED:
                span.set_status(trace.StatusCode.ERROR, str(outcome.error))
            leave(error)

        return ends

    def _is_recording(self) -> bool:
        api = self._api
        return self._provider is not None or not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)

    def _links(self, run_id: str) -> list[Any]:
        from opentelemetry.trace import Link

        links = [Link(run_context(run_id), {"durable.link": "run"})]
        if (previous := self._newest.get(run_id)) is not None:
            links.append(Link(previous, {"durable.link": "previous pass"}))
        return links

    def _remember(self, run_id: str, span: SpanContext) -> None:
        self._newest[run_id] = span
        self._newest.move_to_end(run_id)
        if len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)

    # -- calls

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds:
        """Begin the span of a call, a child of the pass's span."""
        span = self._tracer.start_span(
            f"{'rollback' if call.is_rollback else 'step'} {call.name}",
            attributes={
                "durable.run.id": run.id,
                "durable.workflow": run.workflow,
                "durable.location": call.info.location,
                "durable.attempt": call.info.attempt,
            },
        )
        return _entered(span)

    # -- starts

    def run_started(self, run: RunRecord) -> None:
        """Link the span in which the run was started to the run."""
        if not self._is_recording():
            return
        span = self._api.get_current_span()
        if span.is_recording():
            span.add_link(run_context(run.id), {"durable.link": "started run"})


def _entered(span: Span) -> CallEnds:
    """Make `span` the current one; return a function that ends it, with the error that ended the work."""
    from opentelemetry import context, trace

    token = context.attach(trace.set_span_in_context(span))

    def ends(error: BaseException | None) -> None:
        context.detach(token)
        if isinstance(error, Exception):
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        elif error is not None:  # evicted, cancelled, or taken over by another worker
            span.set_attribute("durable.interrupted", type(error).__name__)
        span.end()

    return ends
