"""The counts of a process: passes, calls, failures, late wake-ups, lost leases, and slots and units asked for.

Labels are names of the code (workflows, queues, limits) and durable's own words, never ids, locations or texts of
errors: each value of a label is a permanent series.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from durable import signals
from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.effects import Call
from durable.core.journal import Event
from durable.core.records import ENDED, RunRecord
from durable.core.run_pass import PassOutcome
from durable.instrumentation import observers
from durable.instrumentation.observers import CallEnds, PassEnds, lateness

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)  # seconds
_WAITS = (0.1, 1, 10, 60, 300, 1_800, 3_600, 21_600, 86_400)  # seconds
_DURATIONS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)  # seconds

_installed: list[Instruments] = []


class Instruments:
    """The counters and histograms, in `registry`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.passes = Counter(
            "durable_passes",
            "Passes by how they left the run: its state, lease_lost, commits_lost or cut_short",
            ["workflow", "queue", "outcome"],
            registry=registry,
        )
        self.pass_seconds = Histogram(
            "durable_pass_seconds", "How long passes took", ["workflow"], buckets=_DURATIONS, registry=registry
        )
        self.calls = Counter(
            "durable_step_calls",
            "Calls of the functions of steps and of rollback handlers, by outcome: returned, raised or interrupted",
            ["workflow", "kind", "outcome"],
            registry=registry,
        )
        self.call_seconds = Histogram(
            "durable_step_call_seconds",
            "How long functions of steps and rollback handlers took",
            ["workflow", "kind"],
            buckets=_DURATIONS,
            registry=registry,
        )
        self.failures = Counter(
            "durable_step_failures",
            "Failed attempts of steps and rollback handlers: retried or final",
            ["workflow", "kind", "then"],
            registry=registry,
        )
        self.started = Counter("durable_runs_started", "Runs started by this process", ["workflow"], registry=registry)
        self.ended = Counter(
            "durable_runs_ended", "Runs ended by this process, by state", ["workflow", "state"], registry=registry
        )
        self.wake_up = Histogram(
            "durable_wake_up_seconds",
            "From the moment at which a run became due to its pass",
            ["queue"],
            buckets=_LATENCIES,
            registry=registry,
        )
        self.leases_lost = Counter(
            "durable_leases_lost", "Passes whose run was taken over by another worker", ["queue"], registry=registry
        )
        self.slots_asked = Counter(
            "durable_slots_asked",
            "Answers to runs that asked for slots of a limit: held, or waits for a full one",
            ["limit", "answer"],
            registry=registry,
        )

        self.units_begun = Counter(
            "durable_rate_units", "Units of a limit's rate that attempts have begun with", ["limit"], registry=registry
        )
        self.rate_wait = Histogram(
            "durable_rate_wait_seconds",
            "How long attempts are told to wait for their moments in a limit's rate",
            ["limit"],
            buckets=_WAITS,
            registry=registry,
        )
        self.starts_refused = Counter(
            "durable_starts_refused",
            "Starts of this process that a limit's rate has refused",
            ["limit"],
            registry=registry,
        )

    def connect(self) -> None:
        observers.install(self)
        signals.run_changed.connect(self._on_change)
        signals.step_failed.connect(self._on_step_failed)
        signals.rollback_failed.connect(self._on_rollback_failed)

    def disconnect(self) -> None:
        observers.uninstall(self)
        signals.run_changed.disconnect(self._on_change)
        signals.step_failed.disconnect(self._on_step_failed)
        signals.rollback_failed.disconnect(self._on_rollback_failed)

    # -- passes and calls

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds:
        """Record how late the pass is; at its end, count it."""
        if (late := lateness(run, now)) is not None:
            self.wake_up.labels(run.queue).observe(late)
        began = time.perf_counter()

        def ends(outcome: PassOutcome | None, error: BaseException | None) -> None:
            self.pass_seconds.labels(run.workflow).observe(time.perf_counter() - began)
            word = "cut_short"
            if isinstance(error, CommitsLost):
                word = "commits_lost"
            elif isinstance(error, LeaseLost):
                word = "lease_lost"
                self.leases_lost.labels(run.queue).inc()
            self.passes.labels(run.workflow, run.queue, word if outcome is None else str(outcome.state)).inc()

        return ends

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds:
        kind = "rollback" if call.is_rollback else "step"
        began = time.perf_counter()

        def ends(error: BaseException | None) -> None:
            self.call_seconds.labels(run.workflow, kind).observe(time.perf_counter() - began)
            self.calls.labels(run.workflow, kind, _outcome(error)).inc()

        return ends

    def run_started(self, run: RunRecord) -> None:
        self.started.labels(run.workflow).inc()

    def event_happened(self, _run: RunRecord, event: Event) -> None:
        """Count an answer to a run that asked for slots, or for units of a rate."""
        if event.name == "slots_asked":
            answer = "held" if event.details["is_granted"] else "waits"
            for limit in event.details["limits"]:
                self.slots_asked.labels(limit, answer).inc()
        elif event.name == "units_asked":
            limit = event.details["limit"]
            if event.details["begins"]:
                self.units_begun.labels(limit).inc(event.details["units"])
            else:
                self.rate_wait.labels(limit).observe(event.details["wait"])

    def start_refused(self, limit: str) -> None:
        """Count a start that a rate has refused."""
        self.starts_refused.labels(limit).inc()

    # -- signals

    def _on_change(self, *, workflow: str, state: str, **_: Any) -> None:
        if state in ENDED:
            self.ended.labels(workflow, state).inc()

    def _on_step_failed(self, *, workflow: str, will_retry: bool, **_: Any) -> None:
        self.failures.labels(workflow, "step", "retried" if will_retry else "final").inc()

    def _on_rollback_failed(self, *, workflow: str, will_retry: bool, **_: Any) -> None:
        self.failures.labels(workflow, "rollback", "retried" if will_retry else "final").inc()


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "returned"
    return "raised" if isinstance(error, Exception) else "interrupted"


def install() -> None:
    """Count in this process, in prometheus_client's own registry; repeated calls have no effect."""
    if not _installed:
        _installed.append(Instruments())
        _installed[0].connect()
