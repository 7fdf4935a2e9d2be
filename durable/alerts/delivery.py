"""Deliver an alert: to a function, by mail, or to a webhook.

Each alert and target has a run of one step, which is retried for about a day after errors.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from django.core.mail import EmailMessage
from django.utils.module_loading import import_string

from durable.alerts.alert import Alert
from durable.alerts.settings import AlertSettings, Target
from durable.conf import conf
from durable.context import Context
from durable.core.registry import ALERT
from durable.core.words import safe
from durable.definitions import workflow

#: The header with the time and the HMAC of a webhook's request.
SIGNATURE: Final = "Durable-Signature"


def deliver(name: str, data: dict[str, Any]) -> str:
    """Send the alert with these fields to the target of this name; return "sent", or why nothing was sent."""
    settings = AlertSettings.of(conf.ALERTS) if conf.ALERTS else None
    target = settings.target(name) if settings is not None else None
    if settings is None or target is None:
        return "the settings no longer have this target"
    _BY_TYPE[target.type](Alert(**data), target, settings)
    return "sent"


def signature(secret: str, body: bytes, at: int) -> str:
    """Return the value of the header: `t=<seconds>,v1=<HMAC-SHA256 of "<seconds>.<body>" in hexadecimal digits>`."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def _call(alert: Alert, target: Target, _settings: AlertSettings) -> None:
    function: Callable[[Alert], object] = import_string(target.function)
    function(alert)


def _mail(alert: Alert, target: Target, settings: AlertSettings) -> None:
    word = "Over" if alert.is_over else "Alert"
    lines = [alert.title, "", alert.text if not alert.is_over else "It is over.", *([alert.url] if alert.url else [])]
    until = f" until {_for_people(alert.ended_at)}" if alert.ended_at else ""
    lines += ["", f"Since {_for_people(alert.began_at)}{until}"]
    subject = safe(f"[durable] {word}: {alert.title}")[:200]
    EmailMessage(
        subject, "\n".join(safe(line) for line in lines), from_email=settings.from_email, to=list(target.to)
    ).send()


def _for_people(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M UTC}"


class WebhookError(Exception):
    """A webhook did not accept an alert."""


def _webhook(alert: Alert, target: Target, _settings: AlertSettings) -> None:
    # every process of a project imports this module, few send an alert
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):
        """Follow no redirect: a POST would become a GET."""

        def redirect_request(self, *_args: Any, **_options: Any) -> None:
            """Return None: urllib raises the answer as an error."""

    body = json.dumps(alert.data()).encode()
    request = Request(  # noqa: S310  # the settings accept http and https only
        target.url,
        data=body,
        method="POST",
        headers={
            "Content-Type": "application/json",
            "User-Agent": "durable",
            "Idempotency-Key": hashlib.sha256(alert.id.encode()).hexdigest(),
            SIGNATURE: signature(target.secret, body, int(time.time())),
        },
    )
    try:
        answer = build_opener(NoRedirect).open(request, timeout=target.timeout)
    except HTTPError as error:  # it holds the connection
        error.close()
        raise WebhookError(f"the webhook answered {error.code}: expected a status from 200 to 299") from None
    answer.close()


_BY_TYPE: Final[Mapping[str, Callable[[Alert, Target, AlertSettings], None]]] = {
    "call": _call,
    "mail": _mail,
    "webhook": _webhook,
}


_TRIES: Final = 50
_LONGEST_PAUSE: Final = "30 minutes"


@workflow(name=ALERT)
def send_alert(ctx: Context, target: str, alert: dict[str, Any]) -> str:
    """Send the alert, given by its fields, to the target of this name; return the result."""
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
