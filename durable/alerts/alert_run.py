"""The workflow whose runs send alerts: one run for each alert and target, one step, tried for about a day."""

from __future__ import annotations

from typing import Any, Final

from durable.alerts.delivery import deliver
from durable.context import Context
from durable.core.own_runs import ALERT
from durable.definitions import workflow

_TRIES: Final = 50
_LONGEST_PAUSE: Final = "30 minutes"


@workflow(name=ALERT)
def send_alert(ctx: Context, target: str, alert: dict[str, Any]) -> str:
    """Send the alert, given by its fields, to the target of this name; return what came of it."""
    return ctx.step(
        "send",
        deliver,
        target,
        alert,
        max_retries=_TRIES,
        retry_backoff_base=2,
        retry_backoff_max=_LONGEST_PAUSE,
        timeout="2 minutes",
        retry_on_timeout=True,
    )
