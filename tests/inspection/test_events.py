"""The events of a run, one by one: all of them, in the order of their times, on pages that lose and repeat nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from durable import get_run, operations
from durable.inspection import events
from durable.inspection.events import Event, EventKey, list_events
from durable.models import Run
from durable.operations.audit import Actor, acting_as
from tests.admin import flows
from tests.admin.conftest import Stage


@pytest.fixture(autouse=True)
def _broken(stage: Stage) -> None:
    flows.SWITCH["broken"] = True


def told(run: Run, *, is_newest_first: bool = False) -> list[Event]:
    """All events, page by page."""
    found: list[Event] = []
    after = None
    while True:
        page = list_events(run, after=after, is_newest_first=is_newest_first)
        found += page.events
        if page.next_key is None:
            return found
        after = EventKey.parse(str(page.next_key))
        assert after == page.next_key


def test_attempts_operators_and_completions_are_told_in_order(stage: Stage) -> None:
    stage.start(flows.switched, id="run")
    flows.SWITCH["broken"] = False
    stage.advance(minutes=4)
    with acting_as(Actor("cli", label="ada"), reason="bank is back"):
        operations.recover("run")
    stage.advance(minutes=1)
    run = stage.settle("run")
    found = told(run)
    assert [each.at for each in found] == sorted(each.at for each in found)
    [failed] = [each for each in found if each.what == "attempt failed"]
    assert (failed.location, failed.kind, failed.attempt, failed.by) == ("charge", "step", 1, "host:4711:abc")
    assert "no answer for 1" in failed.detail
    [recovered] = [each for each in found if each.what == "recover"]
    assert (recovered.by, recovered.detail) == ("ada", "bank is back")
    whats = [(each.what, each.location) for each in found]
    assert whats.index(("recover", "")) < whats.index(("completed", "charge")) < whats.index(("completed", "after"))
    assert (whats[0], whats[-1]) == (("created", ""), ("completed", ""))


def test_messages_and_compensations_are_told(stage: Stage) -> None:
    stage.start(flows.approve, id="asks")
    get_run("asks").send("approved")
    [sent] = [each for each in told(stage.settle("asks")) if each.what == "message sent"]
    assert (sent.detail, sent.location) == ("approved", "approval")
    undone = told(stage.start(flows.saga, id="undone"))
    assert [each.location for each in undone if each.what == "compensated"] == ["charge"]
    assert "out of stock" in undone[-1].detail


@pytest.mark.parametrize("is_newest_first", [False, True])
def test_the_failure_of_a_rollback_handler_is_told_before_the_end_that_it_caused(
    stage: Stage, is_newest_first: bool
) -> None:
    flows.SWITCH["rollback_broken"] = True
    run = stage.start(flows.saga, id="stuck")
    found = told(run, is_newest_first=is_newest_first)
    first, last = found[-2:] if not is_newest_first else found[1::-1]
    assert (first.what, first.location, first.kind, first.attempt) == ("compensation failed", "charge", "step", 1)
    assert "the bank is closed" in first.detail
    assert last.what == "failed"


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("is_newest_first", [False, True])
def test_pages_lose_and_repeat_nothing_though_all_happens_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, size: int, is_newest_first: bool
) -> None:
    run = stage.start(flows.saga, id="run")
    at_once = told(stage.start(flows.many, 5, id="many"))
    assert len(at_once) == len({each.key for each in at_once}) >= 5 * 2 + 3
    whole = told(run)
    monkeypatch.setattr(events, "PAGE", size)
    for each, expected in ((run, whole), (Run.objects.get(pk="many"), at_once)):
        found = [event.key for event in told(each, is_newest_first=is_newest_first)]
        assert found == [event.key for event in expected][:: -1 if is_newest_first else 1]


def test_a_key_that_is_none_is_none() -> None:
    key = EventKey(datetime(2026, 1, 2, tzinfo=UTC) + timedelta(microseconds=3), 4, 5)
    assert EventKey.parse(str(key)) == key
    for text in (
        "",
        "~",
        "soon~1~2",
        "2026-01-02T03:04:05~1~2",
        f"{key.at.isoformat()}~x~1",
        f"{key.at.isoformat()}~1",
    ):
        assert EventKey.parse(text) is None
    assert EventKey.parse(f"{key.at.isoformat()}~1~{'9' * 50}") is None
    assert EventKey.parse("2026-13-02T03:04:05+00:00~1~2") is None
