"""Priorities and shares as a start gives them: what is stored, in which order runs begin, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from durable import Context, operations, runtime, workflow
from durable.checks.configuration import check_settings
from durable.core.limits.ranks import Ranking
from durable.models import RunRank
from durable.operations import holds
from durable.testing import Harness

PRIORITIES = {"high": "10 min", "low": timedelta(hours=-1)}
began: list[Any] = []
ids: list[str] = []


@workflow(name="tests.ranks.noted")
def noted(ctx: Context, name: str) -> None:
    began.append(name)
    ids.append(ctx.run_id)


@workflow(name="tests.ranks.parent")
def parent(ctx: Context) -> None:
    ctx.child("noted", noted.using(priority="1 min"), "x")
    ctx.map("all", noted, [("y",)])


@pytest.fixture(autouse=True)
def nothing_began() -> None:
    began.clear()
    ids.clear()


@override_settings(DURABLE={"PRIORITIES": PRIORITIES})
def test_runs_begin_by_rank() -> None:
    with Harness() as h:
        noted.using(priority="low").start("low")
        noted.start("plain")
        noted.using(priority="high", delay="1 min").start("later")
        noted.using(priority="high").start("high")
        noted.using(priority=timedelta(seconds=5)).start("a little")
        h.settle()
        assert began == ["high", "a little", "plain", "low"]
        h.advance("1 min")
        h.settle()
        assert began[4:] == ["later"]


def test_shares_take_turns() -> None:
    with Harness() as h:
        noted.using(share="a").start_many([(f"a{number}",) for number in range(3)])
        noted.using(share="b", weight=2).start_many([(f"b{number}",) for number in range(3)])
        h.settle()
        # both have their first turns at one moment, and the third of b is at that of the second of a
        assert sorted(began[:2]) == ["a0", "b0"]
        assert began[2] == "b1"
        assert sorted(began[3:5]) == ["a1", "b2"]
        assert began[5:] == ["a2"]


@pytest.mark.django_db(transaction=True)
@override_settings(DURABLE={"PRIORITIES": PRIORITIES})
def test_however_it_is_started_its_rank_is_stored() -> None:
    how = noted.using(priority="high", share="tenant-7", weight=2)
    expected = Ranking(priority="high", head_start=600, share="tenant-7", weight=2.0)
    plain, keyed = how.start("a"), how.using(key="a").start("b")
    sent = how.using(key="b").start_or_send("x", 1, "c")
    many = how.start_many([("d",), ("e",)])
    known = how.using(id="known").start("f")
    again = how.using(id="known").start("f")
    started = [each.id for each in (plain, keyed, sent, *many, known)]
    assert runtime.current().store.rankings([*started, again.id]) == dict.fromkeys(started, expected)
    noted.start("g")
    assert RunRank.objects.count() == len(started)


@pytest.mark.django_db(transaction=True)
def test_a_restart_keeps_the_rank() -> None:
    run = noted.using(priority="-5 min", share="a").start("a")
    operations.cancel(run.id)
    new = operations.restart(run.id)
    store = runtime.current().store
    assert store.rankings([new.id])[new.id] == store.rankings([run.id])[run.id]


def test_a_held_start_takes_its_turn_when_it_is_released() -> None:
    with Harness() as h:
        holds.hold_starts(noted.name)
        noted.using(share="a", priority="1 min").start("held")
        h.settle()
        assert began == []
        holds.release_starts(noted.name)
        noted.start("plain")
        h.settle()
        assert sorted(began) == ["held", "plain"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"priority": "hihg"}, ValueError, 'did you mean "high"'),
        ({"priority": "urgent"}, ValueError, "there are high, low"),
        ({"priority": "25 hours"}, ValueError, "at most 24 hours"),
        ({"priority": "-2 days"}, ValueError, "at most 24 hours"),
        ({"priority": [1]}, TypeError, "in seconds"),
        ({"share": ""}, ValueError, "1 to 200 printable"),
        ({"share": 7}, TypeError, "text"),
        ({"share": "a", "weight": 0}, ValueError, "from 0.001 to 1000"),
        ({"share": "a", "weight": 10**400}, ValueError, "from 0.001 to 1000"),
        ({"share": "a", "weight": float("nan")}, ValueError, "from 0.001 to 1000"),
        ({"priority": 10**400}, ValueError, "too long"),
        ({"share": "a", "weight": True}, TypeError, "a number"),
        ({"weight": 2}, TypeError, "needs share"),
    ],
)
@override_settings(DURABLE={"PRIORITIES": PRIORITIES})
def test_what_no_rank_can_be_is_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with Harness(), pytest.raises(error, match=says):
        noted.using(**options).start("a")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["x" * 201, "x" * 300, "  ", "high\n", "a\x00b"])
def test_a_name_that_no_run_can_have_is_refused_by_the_check_and_at_the_start(name: str) -> None:
    with override_settings(DURABLE={"PRIORITIES": {name: "10 min"}}):
        assert [each.id for each in check_settings() if "PRIORITIES" in each.msg] == ["durable.E003"]
        with pytest.raises(ValueError, match="is made of 1 to 200 printable characters"):
            noted.using(priority=name).start(name)
    with pytest.raises(ValueError, match="at most 200 characters"):
        noted.using(priority=f"{'0' * 300}10 min").start("long")


@pytest.mark.django_db
@override_settings(DURABLE={"PRIORITIES": {" " + "x" * 200 + " ": "10 min"}})
def test_a_name_of_200_characters_starts_a_run() -> None:
    assert [each for each in check_settings() if "PRIORITIES" in each.msg] == []
    run = noted.using(priority=" " + "x" * 200 + " ").start("x")
    assert RunRank.objects.get(run_id=run.id).priority == "x" * 200


def test_a_child_has_the_rank_that_its_start_says_and_else_its_parents() -> None:
    with Harness() as h:
        run = parent.using(share="a").start()
        h.settle()
        found = runtime.current().store.rankings([run.id, *ids])
    assert [each.priority for each in found.values()] == ["", "1 min", ""]
    assert [each.share for each in found.values()] == ["a", "a", "a"]
