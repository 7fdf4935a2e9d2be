"""The summary of a run: its sentences to the letter, and its data in the column."""

import json
import pickle
from copy import copy, deepcopy
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from durable.core.control_flow import Park
from durable.core.errors import STOPPED
from durable.core.limits.slot_records import Admission
from durable.core.location import escape
from durable.core.summary import (
    KIND_LENGTH,
    Summary,
    SummaryKind,
    asleep,
    awaiting,
    backing_off,
    compensating,
    in_line,
    kind_of_stored,
    rated,
    waiting,
)

T: Final = datetime(2026, 3, 1, 12, 30, 5, 250_000, tzinfo=UTC)
AT: Final = "2026-03-01 12:30:05 UTC"
BACKOFF: Final = backing_off("charge", "GatewayTimeout", 1, 3)
HOSTILE: Final = 'a{b}"\\\x00\x1a\ud800\n{"kind":"paused"}'

SENTENCES: Final[dict[SummaryKind, tuple[dict[str, Any], str]]] = {
    SummaryKind.TEXT: ({"text": "anything {at} all"}, "anything {at} all"),
    SummaryKind.WAITING: ({"doing": [], "queues": ["a"], "until": None}, "waiting for a message in a"),
    SummaryKind.HANDED_OVER: ({}, "handed over by a worker that stops"),
    SummaryKind.STOP_REQUESTED: ({}, "to be stopped as an operator has asked"),
    SummaryKind.PAUSED: ({}, "paused"),
    SummaryKind.RESUMED: ({}, "resumed"),
    SummaryKind.RECOVERED: ({}, "recovered"),
    SummaryKind.RECOVERED_COMPENSATING: ({}, "recovered: compensating"),
    SummaryKind.REPLAYED: ({"location": "b"}, "replayed from b"),
    SummaryKind.IMPORTED: ({"state": "sleeping"}, "imported: the run was open elsewhere (sleeping)"),
    SummaryKind.UNKNOWN_WORKFLOW: ({"workflow": "w"}, 'waiting for a worker that knows the workflow "w"'),
    SummaryKind.DIVERGED: (
        {"error": "no step"},
        "the code of this worker does not fit the history, trying again until the grace period ends: no step",
    ),
    SummaryKind.MISTAKE: (
        {"error": "NameError: x"},
        "a mistake in the code, trying again until the grace period ends: NameError: x",
    ),
    SummaryKind.END_REFUSED: (
        {"function": "shop.orders.ended", "error": "ValueError: x"},
        "cannot end: its on_end, shop.orders.ended, failed, trying again: ValueError: x",
    ),
    SummaryKind.CANCELLING: ({"reason": "why"}, "to be cancelled by a worker: why"),
    SummaryKind.STOPPED_BY_MISTAKE: ({"error": "NameError: x"}, f"stopped: NameError: x: {STOPPED}"),
    SummaryKind.COMPENSATING: ({}, "compensating"),
    SummaryKind.HANDLER_BACKOFF: ({}, "compensating: a rollback handler waits for its next try"),
    SummaryKind.HANDLER_FAILED: (
        {"location": "b", "error": "OSError: x"},
        'the rollback handler of "b" failed: OSError: x; recover() goes on with it',
    ),
    SummaryKind.COMPENSATION_STOPPED: (
        {"error": "OSError: x"},
        "compensation stopped: OSError: x; recover() goes on with it",
    ),
    SummaryKind.DROPPED: ({"parent": "order-7"}, 'cancelled: its parent "order-7" has taken its start back'),
    SummaryKind.PARENT_ENDED: (
        {"parent": "order-7", "state": "failed"},
        'cancelled: its parent "order-7" has ended (failed)',
    ),
    SummaryKind.COMPENSATED: ({"count": 1_000, "recoverable": False}, "compensated: 1,000 steps were undone"),
    SummaryKind.CANCELLED: ({"reason": "why {not}"}, "cancelled: why {not}"),
    SummaryKind.HELD: (
        {"workflow": "w", "by": "ada", "reason": "why {not}"},
        'paused at its start: new starts of "w" are held by ada: why {not}',
    ),
}


@pytest.mark.parametrize("kind", SummaryKind)
class TestEachKind:
    def test_has_its_sentence(self, kind: SummaryKind) -> None:
        facts, sentence = SENTENCES[kind]
        assert Summary(kind, **facts) == sentence
        assert type(str(Summary(kind, **facts))) is str

    def test_comes_back_from_the_column_with_its_data(self, kind: SummaryKind) -> None:
        given, _ = SENTENCES[kind]
        facts = {name: HOSTILE if isinstance(value, str) else value for name, value in given.items()}
        summary = Summary(kind, **facts)
        for same in (
            Summary.load(summary.stored),
            copy(summary),
            deepcopy(summary),
            pickle.loads(pickle.dumps(summary)),  # its own
        ):
            assert (same, same.kind, same.facts) == (summary, kind, facts)

    def test_is_known_by_the_beginning_of_the_column(self, kind: SummaryKind) -> None:
        facts, _ = SENTENCES[kind]
        stored = Summary(kind, **facts).stored
        assert kind_of_stored(stored[:KIND_LENGTH]) is kind


@pytest.mark.parametrize(
    ("park", "sentence"),
    [
        (Park(T), f"waiting for {AT}"),
        (Park(T, doing=[asleep("cool%20off")]), f'asleep in "cool off"; goes on at {AT}'),
        (Park(None, frozenset()), "waiting for a message in any queue"),
        (Park(T, frozenset({"b", escape("a/c")})), f"waiting for a message in a/c, b or {AT}"),
        (Park(T, doing=[BACKOFF]), f'step "charge" failed (GatewayTimeout), attempt 1 of 3; goes on at {AT}'),
        (
            Park(T, frozenset({"a"}), [asleep("s"), BACKOFF]),
            f'asleep in "s"; step "charge" failed (GatewayTimeout), attempt 1 of 3; waiting for a message in a; goes on at {AT}',
        ),
        (
            Park(T, doing=[compensating("sold out")]),
            f"compensating (sold out), a rollback handler waits for its next try; goes on at {AT}",
        ),
    ],
)
def test_a_park_says_what_the_run_does_and_waits_for(park: Park, sentence: str) -> None:
    summary = waiting(park)
    assert summary == sentence
    assert Summary.load(summary.stored) == sentence


@pytest.mark.parametrize(
    "names",
    [["x" * 1_000], *(["y" * length] * 2 for length in range(130, 150)), [str(number) for number in range(1_000)]],
    ids=lambda names: f"{len(names)}x{len(names[0])}",
)
def test_what_many_branches_do_is_cut_after_300_characters_and_so_is_the_data(names: list[str]) -> None:
    whole = "; ".join(f'asleep in "{name}"' for name in names)
    summary = waiting(Park(None, frozenset({"a"}), [asleep(name) for name in names]))
    doing = whole if len(whole) <= 300 else f"{whole[:300]}…"
    assert summary == f"{doing}; waiting for a message in a"
    assert Summary.load(summary.stored) == summary
    assert len(summary.stored) < 1_500


@pytest.mark.parametrize(
    "text",
    [
        "",
        "any prose",
        '{"kind":"paused"',
        '{"kind":"not_known"}',
        '{"kind":"replayed"}',
        '{"kind":"waiting","doing":[{}],"queues":null,"until":null}',
        '{"kind":"waiting","doing":5,"queues":null,"until":"soon"}',
        '{"other":1}',
        pytest.param('{"kind":"waiting","doing":' + "[" * 100_000, id="deep"),
        "{",
    ],
)
def test_a_column_without_data_is_shown_as_it_is(text: str) -> None:
    summary = Summary.load(text)
    assert (summary, summary.kind, summary.stored) == (text, SummaryKind.TEXT, text)
    assert summary.without_time == summary.without_advice == text


def test_the_column_is_json_with_the_kind_first() -> None:
    stored = Summary(SummaryKind.REPLAYED, location="straße").stored
    assert stored == '{"kind":"replayed","location":"straße"}'
    assert json.loads(stored) == {"kind": "replayed", "location": "straße"}


def test_a_summary_tells_nothing_of_other_runs_for_a_reader_who_may_not_see_them() -> None:
    admission = Admission(is_granted=False, limit="gpu", place=7001, held=7002, at_once=7003)
    doing = [in_line(admission), rated("api", 7004), awaiting("call", "other-1"), BACKOFF, asleep("nap")]
    whole = waiting(Park(T, doing=doing))
    assert "7001" in whole
    assert "other-1" in whole
    alone = whole.without_others
    assert alone.startswith("in line for gpu; rate api; waiting for a child; step ")
    assert not any(each in alone for each in ("700", "other-1"))
    assert alone.is_in_line == whole.is_in_line
    for each in doing:
        one = waiting(Park(T, doing=[each]))
        same = one.without_others
        assert (same.is_in_line, same.is_rated, same.is_trying_again) == (
            one.is_in_line,
            one.is_rated,
            one.is_trying_again,
        )
    ended = Summary(SummaryKind.PARENT_ENDED, parent="other-1", state="failed")
    assert "other-1" not in ended.without_others
    assert Summary(SummaryKind.PAUSED).without_others == "paused"


def test_the_moment_of_a_race_is_not_told_as_the_end_of_one_of_its_waits() -> None:
    """It may be that of the step's next attempt: the wait has no end then."""
    found = Summary(SummaryKind.WAITING, doing=[BACKOFF], queues=["cancel"], until=T.isoformat())
    assert found == (
        f'step "charge" failed (GatewayTimeout), attempt 1 of 3; waiting for a message in cancel; goes on at {AT}'
    )
