"""The events of a pass: log messages, Django signals, and observers of passes and calls.

Owns what is reported of a pass while it runs. Must not decide anything and must not write to the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from durable import signals
from durable.core.current import running_workflow
from durable.core.effects import Call
from durable.core.errors import STOPPED
from durable.core.journal import Event
from durable.core.records import RunRecord, RunState
from durable.execution.connections import DATABASE_TROUBLE
from durable.instrumentation import observers

logger = logging.getLogger("durable.pass")

_LOGGED: Final = frozenset({"run_failed", "run_diverged", "run_mistaken", "step_failed", "rollback_failed"})


class PassEvents:
    """Reports the events of one pass of `run`. `on_call` is called before each call of a user's function."""

    def __init__(self, run: RunRecord, on_call: Callable[[Call], None] | None) -> None:
        self._run = run
        self._on_call = on_call
        self._state = str(run.state)  # the state that receivers were called with last
        #: The observers of this pass.
        self.observation = observers.NO_OBSERVATION

    def emit(self, event: Event) -> None:
        """Log the event if operators look for it, and call the observers and the signal's receivers."""
        details: dict[str, Any] = {"run": self._run.id, "workflow": self._run.workflow, **event.details}
        if event.name == "run_changed":
            previous, self._state = self._state, details["state"]
            details["previous"] = previous
        if event.name in _LOGGED:
            _log(event, details)
        if not self.observation.is_idle:
            self.observation.event_happened(event)
        signal = signals.BY_NAME.get(event.name)
        if signal is not None and signal.receivers:
            with running_workflow(None):  # a receiver is not workflow code
                signals.send(signal, **details)

    def other_changed(self, run: RunRecord, previous: str) -> None:
        """Tell that this pass has changed the state of another run, which was `previous`."""
        if run.state == previous or not signals.run_changed.receivers:
            return
        with running_workflow(None):  # a receiver is not workflow code
            details = {"run": run.id, "workflow": run.workflow, "state": str(run.state), "previous": str(previous)}
            signals.send(signals.run_changed, **details)

    def children_started(
        self, children: Sequence[RunRecord], states: Callable[[Sequence[str]], Mapping[str, str]]
    ) -> None:
        """Tell the observers and the receivers of `run_changed` of the children that this pass has started.

        `states` looks up the states of runs, once and only if there are receivers: a child of a workflow whose new
        starts are held is paused.
        """
        with running_workflow(None):  # a receiver is not workflow code
            for run in children:
                observers.started(run)
            if not children or not signals.run_changed.receivers:
                return
            found = _looked_up(states, [run.id for run in children])
            for run in children:
                is_held = found.get(run.id) == RunState.PAUSED
                details = {"run": run.id, "workflow": run.workflow, "previous": ""}
                signals.send(signals.run_changed, **details, state=str(RunState.PAUSED if is_held else run.state))

    def before_call(self, call: Call) -> None:
        """Tell the harness of a call that is about to be made."""
        if self._on_call is not None:
            self._on_call(call)

    def commits_lost(self) -> None:
        """Log that a commit was refused because the database has lost earlier ones of this pass."""
        logger.error(
            "the database has lost commits of run %s that it had answered, as after a failover to a standby that lagged "
            "or a restored backup: nothing was written, and the run is loaded again and does again what is missing",
            self._run.id,
            extra={"run_id": self._run.id, "workflow": self._run.workflow},
        )

    def lease_lost(self) -> None:
        """Log that a commit was refused because another worker has claimed the run."""
        logger.warning(
            "run %s was taken over by another worker (fence %d is no longer the newest): nothing was written",
            self._run.id,
            self._run.fence,
        )


def _looked_up(states: Callable[[Sequence[str]], Mapping[str, str]], ids: Sequence[str]) -> Mapping[str, str]:
    try:
        return states(ids)
    except DATABASE_TROUBLE as error:  # the children are started, whatever the store says now
        logger.warning("the states of started children cannot be read: %s: %s", type(error).__name__, error)
        return {}


def _log(event: Event, details: Mapping[str, Any]) -> None:
    """Log what operators look for in the log without connecting a signal receiver."""
    run, workflow, error = details["run"], details["workflow"], details.get("error")
    where = details.get("location", "")
    extra = {"run_id": run, "workflow": workflow, "location": where}  # as `durable.logs.RunFilter` names them
    if event.name == "run_failed":
        # the exception goes with it: an error tracker makes one report of a failed run, and tells causes apart by it
        if details["is_mistake"]:
            logger.error(
                "run %s of %s stopped: %s: %s", run, workflow, STOPPED, error, exc_info=event.exception, extra=extra
            )
        else:
            logger.error("run %s of %s failed: %s", run, workflow, error, exc_info=event.exception, extra=extra)
    elif event.name == "run_diverged":
        logger.error("run %s of %s: this code does not fit its history: %s", run, workflow, error, extra=extra)
    elif event.name == "run_mistaken":
        text = "run %s of %s: a mistake in the code, tried again at %s: %s"
        logger.error(text, run, workflow, f"{details['retry_at']:%H:%M:%S}", error, extra=extra)
    else:
        what = "step" if event.name == "step_failed" else "rollback handler of"
        then = f"tried again at {details['retry_at']:%H:%M:%S}" if details["will_retry"] else "not tried again"
        text = "run %s: %s %s failed, attempt %d: %s; %s"
        logger.log(_level(details), text, run, what, where, details["attempt"], error, then, extra=extra)


def _level(details: Mapping[str, Any]) -> int:
    """Return the log level of a failed attempt: low for one that the code expects.

    If it ends the run, that is logged as an error.
    """
    return logging.INFO if details.get("is_caught") and not details["will_retry"] else logging.WARNING
