"""The signatures of Stripe, GitHub and Slack: the providers' published examples, and what is none."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.http import HttpRequest

from durable.hooks.signatures import Verify, github, reasons, slack, stripe
from durable.testing import Harness

#: docs.github.com, "Validating webhook deliveries", the values to test an implementation with.
GITHUB_SECRET = "It's a Secret to Everybody"
GITHUB_BODY = b"Hello, World!"
GITHUB = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
#: docs.slack.dev, "Verifying requests from Slack", the walk-through.
SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
SLACK_TIME = 1531420618
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
#: docs.stripe.com, "Verify webhook signatures": the header of the example, whose secret and body are not published.
STRIPE_EXAMPLE = (
    "t=1492774577,v1=5257a869e7ecebeda32affa62cdca3fa51cad7e77a0e56ff536d0ce8e108d8bd,"
    "v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
)
STRIPE_SECRET = "whsec_shop"
STRIPE_TIME = 1492774577
STRIPE_BODY = b'{"id": "evt_1", "amount": 1099}'


@pytest.fixture
def at() -> Iterator[Callable[[float], None]]:
    """Set the clock, in seconds since 1970."""
    with Harness(now=datetime(2000, 1, 1, tzinfo=UTC)) as h:

        def set_clock(moment: float) -> None:
            h._now = datetime.fromtimestamp(moment, UTC)

        yield set_clock


def of_stripe(secret: str = STRIPE_SECRET, moment: int = STRIPE_TIME, body: bytes = STRIPE_BODY) -> str:
    return hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()


# -- GitHub


def test_the_example_of_github_is_right() -> None:
    assert github(GITHUB_SECRET)(GITHUB_BODY, {"X-Hub-Signature-256": GITHUB}) is True


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (GITHUB_BODY + b" ", {"X-Hub-Signature-256": GITHUB}),
        (GITHUB_BODY, {}),
        (GITHUB_BODY, {"X-Hub-Signature-256": ""}),
        (GITHUB_BODY, {"X-Hub-Signature-256": GITHUB.removeprefix("sha256=")}),
        (GITHUB_BODY, {"X-Hub-Signature-256": GITHUB[:-1]}),
        (GITHUB_BODY, {"X-Hub-Signature-256": "sha256=ü"}),
        (GITHUB_BODY, {"X-Hub-Signature": GITHUB}),
        (GITHUB_BODY, {"X-Hub-Signature-256": GITHUB.replace("sha256", "sha1")}),
    ],
)
def test_anything_else_of_github_is_not(body: bytes, headers: dict[str, str]) -> None:
    assert github(GITHUB_SECRET)(body, headers) is False
    assert github("another")(GITHUB_BODY, {"X-Hub-Signature-256": GITHUB}) is False


# -- Slack


def test_the_example_of_slack_is_right(at: Callable[[float], None]) -> None:
    headers = {"X-Slack-Request-Timestamp": str(SLACK_TIME), "X-Slack-Signature": SLACK}
    for moment in (SLACK_TIME, SLACK_TIME + 300, SLACK_TIME - 300):
        at(moment)
        assert slack(SLACK_SECRET)(SLACK_BODY, headers) is True


def test_an_old_request_of_slack_is_not(at: Callable[[float], None]) -> None:
    headers = {"X-Slack-Request-Timestamp": str(SLACK_TIME), "X-Slack-Signature": SLACK}
    for moment in (SLACK_TIME + 301, SLACK_TIME - 301):
        at(moment)
        assert slack(SLACK_SECRET)(SLACK_BODY, headers) is False
        assert slack(SLACK_SECRET, tolerance=400)(SLACK_BODY, headers) is True


@pytest.mark.parametrize(
    "change",
    [
        {"X-Slack-Signature": SLACK.replace("v0", "v1")},
        {"X-Slack-Signature": ""},
        {"X-Slack-Request-Timestamp": str(SLACK_TIME + 1)},
        {"X-Slack-Request-Timestamp": ""},
        {"X-Slack-Request-Timestamp": "NaN"},
        {"X-Slack-Request-Timestamp": "1e400"},
        {"X-Slack-Request-Timestamp": "١٢٣"},
        {"X-Slack-Request-Timestamp": "9" * 5000},
    ],
)
def test_a_changed_request_of_slack_is_not(at: Callable[[float], None], change: dict[str, str]) -> None:
    at(SLACK_TIME)
    headers = {"X-Slack-Request-Timestamp": str(SLACK_TIME), "X-Slack-Signature": SLACK, **change}
    assert slack(SLACK_SECRET)(SLACK_BODY, headers) is False


# -- Stripe


def test_the_header_of_stripe_is_read_as_its_documentation_says(at: Callable[[float], None]) -> None:
    at(STRIPE_TIME)
    verify = stripe(STRIPE_SECRET)
    assert verify(STRIPE_BODY, {"Stripe-Signature": STRIPE_EXAMPLE}) is False, "of another body"
    right = re.sub("v1=[0-9a-f]{64}", f"v1={of_stripe()}", STRIPE_EXAMPLE)
    assert f"v1={of_stripe()},v0=" in right
    assert verify(STRIPE_BODY, {"Stripe-Signature": right}) is True


def test_one_of_several_signatures_of_stripe_is_enough(at: Callable[[float], None]) -> None:
    at(STRIPE_TIME)
    header = f"t={STRIPE_TIME},v1={'0' * 64},v1={of_stripe()},v0={'1' * 64}"
    assert stripe(STRIPE_SECRET)(STRIPE_BODY, {"Stripe-Signature": header}) is True


@pytest.mark.parametrize("off", [301, -301, 10**6])
def test_an_old_event_of_stripe_is_not_accepted(at: Callable[[float], None], off: int) -> None:
    header = {"Stripe-Signature": f"t={STRIPE_TIME},v1={of_stripe()}"}
    at(STRIPE_TIME + off)
    assert stripe(STRIPE_SECRET)(STRIPE_BODY, header) is False
    at(STRIPE_TIME + 300)
    assert stripe(STRIPE_SECRET)(STRIPE_BODY, header) is True


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=1492774577",
        f"v1={of_stripe()}",
        f"t={STRIPE_TIME},v0={of_stripe()}",  # of the test mode of old: not accepted
        f"t={STRIPE_TIME},t=1,v1={of_stripe()}",  # which of the two was signed?
        f"t={STRIPE_TIME + 1},v1={of_stripe()}",
        f"t=-{STRIPE_TIME},v1={of_stripe()}",
        f"t={STRIPE_TIME},v1={of_stripe()[:-1]}",
        f"t={STRIPE_TIME},v1={of_stripe(body=STRIPE_BODY + b' ')}",
        ",,,=,=,",
        "\x00",
    ],
)
def test_a_changed_event_of_stripe_is_not_accepted(at: Callable[[float], None], header: str) -> None:
    at(STRIPE_TIME)
    assert stripe(STRIPE_SECRET)(STRIPE_BODY, {"Stripe-Signature": header}) is False


# -- secrets and headers


@pytest.mark.parametrize("secret", ["", [], lambda: "", list, lambda: None])
def test_without_a_secret_nothing_is_accepted(secret: Any) -> None:
    empty = hmac.new(b"", GITHUB_BODY, hashlib.sha256).hexdigest()
    assert github(secret)(GITHUB_BODY, {"X-Hub-Signature-256": f"sha256={empty}"}) is False


def test_two_secrets_count_while_one_replaces_the_other() -> None:
    known = ["new"]
    verify: Verify = github(lambda: known)
    headers = {"X-Hub-Signature-256": GITHUB}
    assert verify(GITHUB_BODY, headers) is False
    known.append(GITHUB_SECRET)
    assert verify(GITHUB_BODY, headers) is True, "asked at each request"


def test_the_case_of_headers_does_not_matter() -> None:
    request = HttpRequest()
    request.META["HTTP_X_HUB_SIGNATURE_256"] = GITHUB
    assert github(GITHUB_SECRET)(GITHUB_BODY, request.headers) is True
    assert github(GITHUB_SECRET)(GITHUB_BODY, {"x-hub-signature-256": GITHUB}) is True


# -- why one is refused


NO_MATCH = "the signature does not match: another secret, or not the body that was signed"


@pytest.mark.parametrize(
    ("verify", "headers", "why"),
    [
        (stripe(STRIPE_SECRET), {}, "Stripe is not accepted: there is no header Stripe-Signature"),
        (stripe(STRIPE_SECRET), {"Stripe-Signature": "t=1"}, "the header Stripe-Signature has not one t and a v1"),
        (stripe(STRIPE_SECRET), {"Stripe-Signature": "t=x,v1=0"}, "the signed time is not a number"),
        (
            stripe(STRIPE_SECRET),
            {"Stripe-Signature": f"t={STRIPE_TIME - 400},v1=0"},
            "the signed time is 400 s old, and 300 s are allowed",
        ),
        (
            stripe(STRIPE_SECRET, tolerance=20),
            {"Stripe-Signature": f"t={STRIPE_TIME + 30},v1=0"},
            "the signed time is 30 s ahead, and 20 s are allowed",
        ),
        (stripe(STRIPE_SECRET), {"Stripe-Signature": f"t={STRIPE_TIME},v1=0"}, NO_MATCH),
        (stripe([]), {"Stripe-Signature": f"t={STRIPE_TIME},v1=0"}, "there is no secret to check it with"),
        (github("a"), {}, "GitHub is not accepted: there is no header X-Hub-Signature-256"),
        (github("a"), {"X-Hub-Signature-256": "sha1=0"}, "the header X-Hub-Signature-256 has no sha256"),
        (github("a"), {"X-Hub-Signature-256": "sha256=0"}, NO_MATCH),
        (slack("a"), {}, "Slack is not accepted: there is no header X-Slack-Signature"),
        (slack("a"), {"X-Slack-Signature": "v0=0"}, "there is no header X-Slack-Request-Timestamp"),
    ],
)
def test_the_log_says_why(
    at: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
    verify: Verify,
    headers: dict[str, str],
    why: str,
) -> None:
    at(STRIPE_TIME)
    assert verify(STRIPE_BODY, headers) is False
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(why)
    caplog.clear()
    with reasons() as collected:
        assert verify(STRIPE_BODY, headers) is False
    assert not caplog.records, "the caller has a line of its own"
    assert [why.endswith(each.partition(": ")[2]) for each in collected] == [True]
