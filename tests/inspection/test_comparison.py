"""Two runs side by side: what differs, paged, bounded and redacted."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, get_run, workflow
from durable.inspection import comparison, history_counts
from durable.inspection.comparison import Comparison, compare_runs
from durable.models import Run
from durable.operations import Actor, acting_as
from durable.runtime import current
from tests.support.stores import passed

pytestmark = pytest.mark.django_db
BROKEN: list[bool] = []


def charge(amount: int) -> int:
    if BROKEN:
        raise RuntimeError("card-number-of-ada was refused")
    return amount * 2


@workflow(name="tests.compare.order")
def order(ctx: Context, amount: int) -> None:
    ctx.step("load", lambda: "the same")
    ctx.step("charge", charge, amount, max_retries=0)
    ctx.step("mail", lambda: None)


@pytest.fixture
def pair() -> tuple[str, str]:
    BROKEN.append(True)
    order.using(id="first").start(7)
    passed(current(), "first")
    BROKEN.clear()
    with acting_as(Actor("cli", label="ops"), reason="known"):
        again = get_run("first").give_output("charge", 99)
    passed(current(), again.id)
    return "first", again.id


def compared(ids: tuple[str, str], **options: Any) -> Comparison:
    left, right = (Run.objects.get(pk=each) for each in ids)
    return compare_runs(left, right, **{"with_payloads": True, **options})


def test_what_differs_is_named_place_by_place(pair: tuple[str, str]) -> None:
    found = compared(pair)
    assert [(each.location, each.differs) for each in found.rows] == [
        ("load", ()),
        ("charge", ("status", "error", "given by hand", "output")),
        ("mail", ("place",)),
    ]
    charged = found.rows[1]
    assert charged.left is not None
    assert charged.right is not None
    assert "card-number-of-ada was refused" in charged.left.error
    assert (charged.right.output, charged.right.is_given, charged.right.error) == (99, True, "")
    assert found.rows[2].left is None
    assert found.inputs is None


def test_another_input_is_shown() -> None:
    order.using(id="first").start(7)
    again = get_run("first").restart(changes={"amount": 8})
    assert compared(("first", again.id)).inputs == (
        {"args": [7], "kwargs": {}},
        {"args": [8], "kwargs": {}},
    )


def test_without_the_permission_no_value_is_shown_or_compared(pair: tuple[str, str]) -> None:
    found = compared(pair, with_payloads=False)
    assert found.rows[1].differs == ("status", "error", "given by hand")
    sides = [side for each in found.rows for side in (each.left, each.right) if side is not None]
    assert {side.output for side in sides} == {None}


def hide(workflow: str, field: str, value: Any) -> Any:
    return "****"


def test_redaction_holds(pair: tuple[str, str]) -> None:
    with override_settings(DURABLE={"REDACT": f"{__name__}.hide"}):
        found = compared(pair)
    assert "card-number-of-ada" not in repr(found.rows)
    shown = [(side.output, side.error) for row in found.rows for side in (row.left, row.right) if side is not None]
    assert "99" not in repr(shown)  # times may have any digits


def test_it_is_paged_at_a_constant_cost(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with CaptureQueriesContext(connection) as whole:
        compared(pair)
    monkeypatch.setattr(comparison, "PAGE", 2)
    with CaptureQueriesContext(connection) as paged:
        first = compared(pair)
    assert ([each.location for each in first.rows], first.next_start, first.previous_start) == (
        ["load", "charge"],
        2,
        None,
    )
    second = compared(pair, start=2)
    assert ([each.location for each in second.rows], second.next_start, second.previous_start) == (["mail"], None, 0)
    assert len(paged) <= len(whole) <= 14
    assert [each.location for each in compared(pair, start=10**6).rows] == ["mail"]


@workflow(name="tests.compare.places")
def places_of(ctx: Context, names: list[str]) -> None:
    for name in names:
        ctx.step(name, lambda: None)


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_pages_have_the_places_of_the_left_run_and_then_the_right_ones_own(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(comparison, "PAGE", size)
    for name, steps in {"first": ["d", "a", "c"], "second": ["z", "a", "b", "d", "y"]}.items():
        places_of.using(id=name).start(steps)
        passed(current(), name)
    found, start = list[tuple[str, tuple[str, ...]]](), 0
    while True:
        page = compared(("first", "second"), start=start)
        assert (page.total, page.start) == (6, start)
        found += [(each.location, each.differs) for each in page.rows]
        if page.next_start is None:
            break
        start = page.next_start
    there = ("place",)
    assert found == [("d", ()), ("a", ()), ("c", there), ("z", there), ("b", there), ("y", there)]


def test_a_count_of_long_histories_is_remembered_while_both_runs_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_counts, "LONG", 1)
    monkeypatch.setattr(history_counts, "_results", OrderedDict())
    for name, steps in {"first": ["a"], "second": ["b", "c"]}.items():
        places_of.using(id=name).start(steps)
        passed(current(), name)

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert compared(("first", "second")).total == 3
        return len(queries)

    first = statements()
    assert statements() == first - 1
    Run.objects.filter(pk="first").update(change_seq=F("change_seq") + 1)
    assert statements() == first
    Run.objects.filter(pk="first").update(lease_expires_at=timezone.now(), state="running", finished_at=None)
    assert statements() == statements() == first
