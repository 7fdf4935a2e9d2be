"""A limit of a workflow that is not defined: an error of the check, of a start and of a tick."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Context, Limit, runtime
from durable.checks.code import check_limits
from durable.core import registry
from durable.declared_limits import undefined
from durable.definitions import Workflow
from durable.errors import UnknownLimitError
from durable.testing import Harness

LIMITS = {"limit-checks": {"at_once": 2}}


def body(ctx: Context) -> int:
    return 1


def made(*limits: Limit) -> Workflow[[], int]:
    return Workflow(body, "limit_checks.body", limit=limits)


def test_a_limit_that_nobody_defines(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    lost = made(Limit("limit-checks"), Limit("limit-checks-own", at_once=1), Limit("limit-checks-rate", rate="1/s"))
    monkeypatch.setattr(registry, "all", lambda: [lost])
    (message,) = check_limits()
    assert message.id == "durable.E015"
    assert '"limit_checks.body" names the limit "limit-checks"' in message.msg
    assert message.hint
    settings.DURABLE = {**settings.DURABLE, "LIMITS": LIMITS}
    assert check_limits() == []


def test_a_rate_alone_gives_no_slots(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"limit-checks": {"rate": "1/s"}}}
    assert undefined(made(Limit("limit-checks")).limits) == ["limit-checks"]
    assert undefined(None) == []


def test_another_workflow_may_define_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = made(Limit("limit-checks")), made(Limit("limit-checks", at_once=3))
    assert undefined(one.limits) == ["limit-checks"]
    monkeypatch.setattr(registry, "all", lambda: [one, other])
    assert undefined(one.limits) == []


def test_a_start_is_refused(settings: Any) -> None:
    lost = made(Limit("limit-checks"))
    with Harness() as h:
        with pytest.raises(UnknownLimitError, match='no limit "limit-checks"'):
            lost.using(id="a").start()
        assert runtime.current().store.get("a") is None
        settings.DURABLE = {**settings.DURABLE, "LIMITS": LIMITS}
        assert lost.using(id="a").start().is_new
        assert h.peek("a").state == "pending"
