"""Ready functions for `verify` of a link: the signatures of Stripe, GitHub and Slack.

    # shop/bank.py
    from django.conf import settings
    from durable.hooks.signatures import stripe

    signature = stripe(lambda: settings.STRIPE_WEBHOOK_SECRET)

    paid = ctx.link("paid", verify="shop.bank.signature")

Each returns a function of the raw body and the headers, which returns whether a signature is right. The secret is a
text, or a function that returns one, or several: while a secret is replaced, both count. Without a secret nothing is
accepted. Signatures are compared in constant time. Why one was not accepted is in the log, at the level WARNING, and in
no answer: the line about the refused answer of a link ends with it, and who calls the function elsewhere gets a line of
its own.

Stripe and Slack sign the time too, so that a request which somebody has recorded is worth nothing later: `tolerance` is
how many seconds it may be off, either way. GitHub signs no time; that a link acts once is what stops a repeat.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

from durable import runtime
from durable.core.numbers import read_whole

__all__ = ["TOLERANCE", "Verify", "github", "slack", "stripe"]

logger = logging.getLogger("durable.hooks")

Secret: TypeAlias = str | Sequence[str] | Callable[[], str | Sequence[str]]
Verify: TypeAlias = Callable[[bytes, Mapping[str, str]], bool]

_reasons: ContextVar[list[str] | None] = ContextVar("durable_refused_signatures", default=None)

#: The seconds that a signed time may be off, as the providers recommend.
TOLERANCE: Final = 300


def stripe(secret: Secret, *, tolerance: float = TOLERANCE) -> Verify:
    """Check `Stripe-Signature`: `t=<seconds>,v1=<hex>`, in which several `v1` may stand; one has to be right."""

    def verify(body: bytes, headers: Mapping[str, str]) -> bool:
        header = _header(headers, "Stripe-Signature")
        if not header:
            return _refuse("Stripe", "there is no header Stripe-Signature")
        parts = [each.strip().partition("=") for each in header.split(",")]
        moments = [value for name, _, value in parts if name == "t"]
        given = [value for name, _, value in parts if name == "v1"]
        if len(moments) != 1 or not given:
            return _refuse("Stripe", "the header Stripe-Signature has not one t and a v1")
        return _is_recent("Stripe", moments[0], tolerance) and _is_one_right(
            "Stripe", secret, moments[0].encode() + b"." + body, given
        )

    return verify


def github(secret: Secret) -> Verify:
    """Check `X-Hub-Signature-256`: `sha256=<hex>`. The older header with SHA-1 is not accepted."""

    def verify(body: bytes, headers: Mapping[str, str]) -> bool:
        header = _header(headers, "X-Hub-Signature-256")
        if not header:
            return _refuse("GitHub", "there is no header X-Hub-Signature-256")
        scheme, _, given = header.partition("=")
        if scheme != "sha256":
            return _refuse("GitHub", "the header X-Hub-Signature-256 has no sha256")
        return _is_one_right("GitHub", secret, body, [given])

    return verify


def slack(secret: Secret, *, tolerance: float = TOLERANCE) -> Verify:
    """Check `X-Slack-Signature`, `v0=<hex>`, over the body and `X-Slack-Request-Timestamp`."""

    def verify(body: bytes, headers: Mapping[str, str]) -> bool:
        moment = _header(headers, "X-Slack-Request-Timestamp")
        header = _header(headers, "X-Slack-Signature")
        if not header or not moment:
            missing = "X-Slack-Request-Timestamp" if header else "X-Slack-Signature"
            return _refuse("Slack", f"there is no header {missing}")
        version, _, given = header.partition("=")
        if version != "v0":
            return _refuse("Slack", "the header X-Slack-Signature has no v0")
        return _is_recent("Slack", moment, tolerance) and _is_one_right(
            "Slack", secret, b"v0:" + moment.encode() + b":" + body, [given]
        )

    return verify


def _header(headers: Mapping[str, str], name: str) -> str:
    """Return a header; Django's mapping ignores case, and so does this for others. "" if it is missing."""
    found = headers.get(name)
    if found is None:
        found = next((value for each, value in headers.items() if each.lower() == name.lower()), "")
    return found


def _is_recent(whose: str, moment: str, tolerance: float) -> bool:
    """Return whether the signed time, in seconds since 1970, is that of now."""
    signed_at = read_whole(moment)
    if signed_at is None:
        return _refuse(whose, "the signed time is not a number")
    off = runtime.current().now().timestamp() - signed_at
    if abs(off) > tolerance:
        way = "old" if off > 0 else "ahead"
        return _refuse(whose, f"the signed time is {abs(off):.0f} s {way}, and {tolerance:g} s are allowed")
    return True


def _is_one_right(whose: str, secret: Secret, signed: bytes, given: Sequence[str]) -> bool:
    """Return whether one of the given signatures is one of `signed` by one of the secrets."""
    secrets = _secrets(secret)
    if not secrets:
        return _refuse(whose, "there is no secret to check it with")
    expected = [hmac.new(each.encode(), signed, hashlib.sha256).hexdigest() for each in secrets]
    # each with each, so that the time says nothing of which was right
    found = [hmac.compare_digest(one, other.encode()) for one in map(str.encode, expected) for other in given]
    return any(found) or _refuse(whose, "the signature does not match: another secret, or not the body that was signed")


def _secrets(secret: Secret) -> list[str]:
    found = secret() if callable(secret) else secret
    return [each for each in ([found] if isinstance(found, str) else found or []) if each]


def _refuse(whose: str, why: str) -> bool:
    reasons = _reasons.get()
    if reasons is None:
        logger.warning("a signature of %s is not accepted: %s", whose, why)
    else:
        reasons.append(f"{whose}: {why}")
    return False


@contextmanager
def reasons() -> Iterator[list[str]]:
    """Collect why signatures are not accepted, instead of logging it: the caller has a line of its own."""
    collected: list[str] = []
    token = _reasons.set(collected)
    try:
        yield collected
    finally:
        _reasons.reset(token)
