"""Each whole number that code gives is checked by one rule: True is none, nor is what a record cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable.context import _map_request
from durable.core.branches import join_branches
from durable.core.limits.rates import MOST_UNITS, Rate, rate_wanted
from durable.core.limits.workflow_limits import Limit
from durable.core.loops import loop
from durable.core.messages import Wait
from durable.core.numbers import MOST_WHOLE, is_number, is_whole, read_whole
from durable.core.options import StepPolicy
from durable.core.people import asked_of
from durable.core.simple_operations import get_version
from durable.definitions import workflow


@workflow(name="tests.numbered")
def numbered(_ctx: Any) -> None:
    """Do nothing."""


NO_SCOPE: Any = None  # the number is refused before anything else
UNSAID: Any = dict.fromkeys(["form", "permission", "to", "about", "not_by", "remind", "escalate", "mail"])

#: The smallest and the largest number of each, and what takes it.
NUMBERS: dict[str, tuple[int, int, Callable[[Any], object]]] = {
    "max_retries": (0, MOST_WHOLE, lambda value: StepPolicy(max_retries=value)),
    "verify_retries": (0, MOST_WHOLE, lambda value: StepPolicy(once=True, verify=len, verify_retries=value)),
    "count": (1, MOST_WHOLE, lambda value: Wait(name="a", count=value)),
    "latest": (1, MOST_WHOLE, lambda value: next(get_version(NO_SCOPE, "a", value))),
    "at_once of a join": (1, MOST_WHOLE, lambda value: next(join_branches(NO_SCOPE, "a", {}, value))),
    "at_once of a map": (1, MOST_WHOLE, lambda value: _map_request(numbered, [], value, "stop", "keep")),
    "history_prune_interval": (1, MOST_WHOLE, lambda value: next(loop(NO_SCOPE, "a", len, None, value, None))),
    "history_size": (0, MOST_WHOLE, lambda value: next(loop(NO_SCOPE, "a", len, None, 1, value))),
    "approvals": (1, 20, lambda value: asked_of(**UNSAID, text="", approvals=value)),
    "units": (1, MOST_UNITS, lambda value: rate_wanted("a", value)),
    "burst": (1, MOST_UNITS, lambda value: Rate.of("1000/s", value)),
    "at_once of a limit": (0, 999_999, lambda value: Limit("a", at_once=value)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_one_rule_for_all(name: str) -> None:
    least, most, give = NUMBERS[name]
    called = name.split()[0]
    for wrong in (True, False, least - 1, float(least), str(least)):
        with pytest.raises(
            ValueError, match=rf"^{called} must be a whole number (of at least|from) {least}\b.*, not {wrong!r}$"
        ):
            give(wrong)
    for wrong in (most + 1, 10**5_000):
        with pytest.raises(ValueError, match=rf"^{called} must be .*{most:,}"):
            give(wrong)
    with pytest.raises(ValueError, match=rf"^{called} must be a whole number (of at least|from) {least}\b(?!.*, not)"):
        give(-(10**5_000))  # Python writes down no more than 4,300 digits
    for right in (least, most):
        try:
            give(right)
        except AttributeError:  # it goes on, and there is no scope
            assert name in ("latest", "at_once of a join", "history_prune_interval", "history_size")


def test_what_counts_as_a_number() -> None:
    assert [each for each in (True, False, "1", None, 1, 1.5, 10**5_000) if is_number(each)] == [1, 1.5, 10**5_000]
    assert [each for each in (True, 1.0, -(2**63) - 1, -(2**63), MOST_WHOLE, 2**63) if is_whole(each)] == [
        -(2**63),
        MOST_WHOLE,
    ]


def test_numbers_in_texts_from_outside() -> None:
    texts = ["", "-1", "+1", "1_0", " 1", "1.0", "²", "٣", "9" * 5_000, str(2**63), str(MOST_WHOLE), "007"]
    assert [found for each in texts if (found := read_whole(each)) is not None] == [MOST_WHOLE, 7]
    assert [read_whole(each, 20) for each in ("0", "20", "21")] == [0, 20, None]
