"""The verdict finds what was changed behind the runs of a worker: in the ledger and in the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durable.models import Run
from project.shop.models import Charge
from tests.support.stores import in_force, passed
from tests.tools.hosts import ledger, workflows
from tests.tools.hosts.ledger import Account, Line
from tests.tools.hosts.load import Load
from tests.tools.hosts.verdict import broken_promises

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]
RUN = "order-1"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """An order that has completed."""
    monkeypatch.setenv("HOSTS_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setattr(workflows, "BUSY", 0.0)
    with in_force() as at:
        workflows.order.using(id=RUN).start()
        while Run.objects.get(pk=RUN).state != "completed":
            passed(at, RUN)
        yield Load("test", started={RUN: 0.0})


def judged(load: Load, *, may_lose: bool = False, may_repeat: int = 0) -> list[str]:
    return broken_promises(load, [], may_lose=may_lose, may_repeat=may_repeat)


def test_a_run_that_has_done_all_once_is_as_promised(load: Load) -> None:
    assert judged(load) == []


def test_a_row_that_is_gone_or_there_twice(load: Load) -> None:
    Charge.objects.get(reference=f"{RUN}/1").delete()
    Charge.objects.create(reference=f"{RUN}/2", amount=1)
    for may_lose in (False, True):
        [problem] = judged(load, may_lose=may_lose)
        assert "{0: 1, 1: 0, 2: 2}" in problem


def test_a_call_that_was_repeated(load: Load) -> None:
    [last] = [each for each in ledger.read() if (each.what, each.number) == ("begin", 2)]
    ledger.note("begin", RUN, 2, last.key)
    assert judged(load, may_repeat=1) == []
    assert judged(load) == ["1 calls were repeated, and 0 may have been under way"]


def test_a_call_that_was_made_after_its_record(load: Load) -> None:
    [first] = [each for each in ledger.read() if (each.what, each.number) == ("begin", 0)]
    ledger.note("begin", RUN, 0, first.key)
    assert judged(load, may_repeat=1) == [f"call 0 of {RUN} was made after call 2 had begun"]
    assert judged(load, may_lose=True) == []


def test_another_key(load: Load) -> None:
    ledger.note("begin", RUN, 2, "another")
    assert judged(load, may_repeat=1) == [f"call 2 of {RUN} had 2 keys"]


def test_a_run_that_is_lost_or_has_not_ended(load: Load) -> None:
    load.lost.add("order-2")
    assert broken_promises(load, ["order-3"], may_lose=False, may_repeat=0) == [
        "has not ended: order-3",
        "is lost: order-2",
    ]


def test_how_long_nothing_was_done() -> None:
    lines = [Line("begin", run, number, "", at, 1) for run, number, at in [("a", 0, 1.0), ("b", 0, 5.0), ("a", 1, 7.0)]]
    account = Account(lines)
    assert account.longest_standstill(2.0, 7.5) == 3.0
    assert account.longest_standstill(2.0, 12.0) == 5.0
    assert account.longest_wait() == 6.0
