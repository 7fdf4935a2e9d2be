"""Runs workflows with Sentry's SDK set up, and prints what it would send: a JSON object for each event."""

from __future__ import annotations

import json
from typing import Any

import django
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

django.setup()

from durable import Context, workflow  # noqa: E402  # after the setup, as in a project
from durable.testing import Harness  # noqa: E402
from tests.docs.pages import page  # noqa: E402


class Collecting(Transport):
    """Keeps events."""

    events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [event for item in envelope.items if (event := item.get_event()) is not None]


def charge(amount: int) -> None:
    """Fail in the shop's code."""
    if amount < 0:
        raise ValueError("a negative amount")
    raise LookupError(f"no card for {amount}")


@workflow(name="reports.failing")
def failing(ctx: Context, amount: int) -> None:
    """A step that is tried three times."""
    ctx.step("charge", charge, amount, max_retries=2, retry_backoff_base=1)


@workflow(name="reports.undone")
def undone(ctx: Context) -> None:
    """A failure that is compensated."""
    ctx.rollback_checkpoint("from here")
    ctx.step("reserve", lambda: 1, rollback=release)
    ctx.step("charge", charge, 7, max_retries=0)


def release(_rollback: Any, _output: Any) -> None:
    """Do nothing."""


ATTEMPTS: list[int] = []


def flaky() -> int:
    """Fail once."""
    ATTEMPTS.append(1)
    if len(ATTEMPTS) < 2:
        raise ConnectionError("away")
    return 1


@workflow(name="reports.quiet")
def quiet(ctx: Context) -> str:
    """Parks, retries, catches; ends well."""
    ctx.step("flaky", flaky, retry_backoff_base=1)
    ctx.sleep("rest", "1 hour")
    ctx.try_step("caught", charge, 1, max_retries=0)
    return "done"


#: What the guide advises.
GUIDE: dict[str, Any] = {}
for block in page("docs/guides/other-projects.md").examples():
    if "def before_send" in block.parsed:
        exec(block.parsed, GUIDE)
sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=Collecting, before_send=GUIDE["before_send"])
with Harness() as h:
    h.finish(h.start(quiet, id="run-0"))
    for number, amount in enumerate((1, 2, -1), start=1):
        h.finish(h.start(failing, amount, id=f"run-{number}"))
    h.finish(h.start(undone, id="run-4"))
for each in Collecting.events:
    print(json.dumps(each, default=str))
