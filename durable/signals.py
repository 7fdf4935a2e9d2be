"""Django signals for code outside the engine: monitoring, alerts, an application's own reactions.

Owns the signals and how they are sent. A receiver cannot break a run: its errors are logged and not raised, and no
decision depends on it. A signal is sent after the commit of the change that it reports. A worker that dies between the
two sends none, so work that must happen belongs into a step, not into a receiver.

The `sender` is `durable.signals.Durable` unless a module says otherwise. The keyword arguments:

- `run_changed`: `run` (id), `workflow`, `state`, `previous` (states as text; `previous` is "" for a new run). For a new
  child it is sent by the worker whose pass has started it. It is not sent for the children that the database cancels in
  the commit that ends their parent, because no process has made that change: a receiver that needs them asks for
  `handle.children()` when the parent has ended. It is sent for a child that a worker has, which ends its own pass.
- `run_completed`: `run`, `workflow`.
- `run_failed`: `run`, `workflow`, `error` (`ErrorInfo`: type, message, traceback), `is_mistake`: whether a mistake in
  the workflow's code has stopped the run, so that nothing was undone.
- `step_failed`: `run`, `workflow`, `location`, `attempt` (from 1), `retries_left` (None: no end of them),
  `will_retry`, `retry_at` (aware, None without a retry), `is_caught` (whether `try_step` returns this last failure to
  the code as a value), `error`
  (`ErrorInfo`). Sent for each failed attempt.
- `step_held`: `run`, `workflow`, `location`, `attempt` (of the last attempt, from 1; 0 if none is recorded), `reason`
  ("unknown": was the attempt done? or "exhausted": its attempts are used up), `error` (`ErrorInfo`), `until` (when the
  step fails by itself, aware; None for never). The run waits for a person.
- `rollback_failed`: `run`, `workflow`, `location` (of the step whose handler failed), `attempt`, `retries_left`,
  `will_retry`, `retry_at`, `error`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.dispatch import Signal

__all__ = [
    "BY_NAME",
    "rollback_failed",
    "run_changed",
    "run_completed",
    "run_failed",
    "send",
    "step_failed",
    "step_held",
]

logger = logging.getLogger("durable")

run_changed = Signal()
run_completed = Signal()
run_failed = Signal()
step_failed = Signal()
step_held = Signal()
rollback_failed = Signal()

BY_NAME: Final = {
    "run_changed": run_changed,
    "run_completed": run_completed,
    "run_failed": run_failed,
    "step_failed": step_failed,
    "step_held": step_held,
    "rollback_failed": rollback_failed,
}
_NAMES: Final = {signal: name for name, signal in BY_NAME.items()}


class Durable:
    """The default sender of durable's signals."""


def send(signal: Signal, *, sender: Any = Durable, **kwargs: Any) -> None:
    """Send `signal` to its receivers; their errors are logged under `durable`. Never raises an Exception."""
    if not signal.receivers:  # the common case: no receivers
        return
    try:
        outcomes = signal.send_robust(sender, **kwargs)
    except Exception:  # an async receiver cannot be called from a thread that runs an event loop
        logger.exception("receivers of %s could not be called for run %s", _NAMES.get(signal), kwargs.get("run"))
        return
    for receiver, outcome in outcomes:
        if isinstance(outcome, Exception):
            name, run = _NAMES.get(signal), kwargs.get("run")
            logger.error("receiver %r of %s failed for run %s", receiver, name, run, exc_info=outcome)
