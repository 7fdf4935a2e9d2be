"""Runs workflows and schedules with the integration, and prints what Sentry would be sent: a JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import django
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from durable.contrib.sentry import DurableIntegration  # before Django is set up, as in a project's settings


class Collecting(Transport):
    """Keeps what the items of envelopes contain."""

    sent: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [item.payload.json for item in envelope.items]


sentry_sdk.init(
    dsn="http://key@127.0.0.1:9/1",
    transport=Collecting,
    integrations=[
        DurableIntegration(
            site="https://example.org/",
            monitor_config={"failure_issue_threshold": 2},
            monitors={"quiet": None, "program.nightly": {"max_runtime": 30}},
        )
    ],
)
django.setup()

from django.core.management import call_command  # noqa: E402

from durable import AsyncContext, Context, cron, every, workflow  # noqa: E402
from durable.core.control_flow import ControlFlow  # noqa: E402
from durable.models import Schedule  # noqa: E402
from durable.operations.schedules.verbs import backfill, run_now  # noqa: E402
from durable.testing import Harness  # noqa: E402


def charge(amount: int) -> None:
    """Fail in the shop's code."""
    raise LookupError(f"no card for {amount}")


@workflow(name="program.charging")
def charging(ctx: Context, amount: int) -> None:
    """Fail in a step, after retries."""
    ctx.step("charge", charge, amount, max_retries=1, retry_backoff_base=1)


@workflow(name="program.other")
def other(ctx: Context) -> None:
    """Fail from the same cause in a branch."""
    ctx.join("both", {"one": lambda c: c.step("charge", charge, 1, max_retries=0), "two": lambda c: None})


@workflow(name="program.undone")
def undone(ctx: Context) -> None:
    """Fail to undo."""
    ctx.rollback_checkpoint("from here")
    ctx.step("reserve", lambda: 1, rollback=release)
    ctx.step("charge", charge, 7, max_retries=0)


def release(_rollback: Any, _output: Any) -> None:
    """Fail in a handler."""
    raise PermissionError("locked")


@workflow(name="program.parking")
def parking(ctx: Context) -> str:
    """Park, be cancelled as a branch, and report everything that passes through."""
    try:
        ctx.race("first", {"slow": waiting, "quick": lambda c: c.sleep("an hour", "1 hour")})
        ctx.sleep("rest", "1 hour")
    except ControlFlow:
        sentry_sdk.capture_exception()
        logging.getLogger("shop").exception("not an error")
        raise
    ctx.step("speak", speak)
    return "done"


def waiting(ctx: Context) -> None:
    """Wait for what does not come."""
    try:
        ctx.queue.next("never")
    except ControlFlow:
        sentry_sdk.capture_exception()
        raise


def speak() -> None:
    """Report something in a step."""
    sentry_sdk.capture_message("a word")


@workflow(name="program.nightly")
def nightly(ctx: Context) -> None:
    """Sleep, and end well."""
    ctx.sleep("rest", "10 minutes")


@workflow(name="program.asynchronous")
async def asynchronous(ctx: AsyncContext) -> None:
    """Fail on an event loop."""
    await ctx.step("charge", charge, 3, max_retries=0)


call_command("migrate", verbosity=0)
with Harness(datetime(2026, 1, 1, 12, tzinfo=UTC), store="database") as h:
    h.finish(h.start(charging, 1, id="run-1"))
    h.finish(h.start(charging, 22, id="run-2"))
    h.finish(h.start(other, id="run-3"))
    h.finish(h.start(undone, id="run-4"))
    h.finish(h.start(parking, id="run-5"))
    every_day = cron("30 2 * * *", zone="Europe/Berlin", jitter="10 minutes")
    Schedule.objects.create(name="program.nightly", workflow="program.nightly", rule=every_day)
    Schedule.objects.create(name="By the loop", workflow="program.asynchronous", rule=every("12 hours"))
    Schedule.objects.create(name="quiet", workflow="program.nightly", rule=every("12 hours"))
    h.advance("13 hours 45 minutes")
    h.settle()
    h.advance("10 minutes")
    h.settle()
    h.finish(run_now("program.nightly").run_id)
    backfill("program.nightly", datetime(2025, 12, 1, tzinfo=UTC), datetime(2025, 12, 2, tzinfo=UTC))
    h.settle()
for each in Collecting.sent:
    print(json.dumps(each, default=str))
