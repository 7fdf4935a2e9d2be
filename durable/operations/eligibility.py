"""The runs of a selection that a bulk would act on: how many, of which workflows, and how many it would leave alone.

A selection that can count itself (`Countable`) is counted along the database's indexes. Any other selection is read
page by page, up to `MAX_COUNTED` runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from durable import runtime
from durable.core.errors import BulkCountError
from durable.core.records import RunState
from durable.core.tally import Tally
from durable.operations.lifecycle import ALLOWED

MAX_COUNTED: Final = 10_000  # eligible runs; beyond them the number is "more than" this
_STATES: Final = {**ALLOWED, "replay": (RunState.FAILED,)}  # a bulk replays from where runs have failed
GRAVE: Final = frozenset({"cancel"})  # verbs that cannot be taken back
_PAGE: Final = 200  # runs of a page of a selection that cannot count itself
_LOOKS: Final = 100  # pages that are read of it: a page of a selection may hold few runs
_SHOWN: Final = 10  # ids


class Selection(Protocol):
    """A selection of runs, read page by page.

    A background bulk records it in a run's input, so the codec must encode it.
    """

    @property
    def total(self) -> int | None:
        """The number of runs, if it is known without a query."""

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids after `cursor` (None: from the start), and the next cursor, None at the end.

        One query whose cost does not grow with the table.
        """


@runtime_checkable
class Countable(Protocol):
    """A selection of runs that can count itself."""

    @property
    def is_everything(self) -> bool:
        """Whether no condition limits the selection."""

    def tally(self, states: Collection[str], most: int) -> Tally:
        """Count the runs: in `states` by workflow, in other states by state alone; up to `most` of each state."""

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return up to `limit` ids of runs in `states`."""


@runtime_checkable
class Narrowed(Protocol):
    """A selection of runs that can be limited to some states."""

    def narrowed(self, states: Collection[str]) -> Selection:
        """Return the selection of those of the runs that are in one of these states when a page is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """The selected runs whose state allows a verb now.

    `count` is exact unless `is_capped`: there are more, or may be more where the selection could not be counted to its
    end. `by_workflow` has the numbers by workflow, the largest first; it is empty if the workflows are not known.
    `left_alone` has the numbers of the other selected runs by state, the state "" for ids that no run has;
    `is_rest_capped` says that there are or may be more of these. `shown` holds the first few eligible ids.
    """

    count: int
    is_capped: bool
    by_workflow: tuple[tuple[str, int], ...] = ()
    left_alone: tuple[tuple[str, int], ...] = ()
    is_rest_capped: bool = False
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.is_capped:
            return f"{self.count:,}"
        return f"{'more than' if self.count >= MAX_COUNTED else 'at least'} {self.count:,}"


def allowed_states(verb: str) -> frozenset[str]:
    """Return the states that allow the verb."""
    return frozenset(str(each) for each in _STATES[verb])


def count(verb: str, selection: Selection) -> Eligibility:
    """Count the selected runs that allow `verb` now, up to MAX_COUNTED of them."""
    allowed = allowed_states(verb)
    if isinstance(selection, Countable):
        tally, shown = selection.tally(allowed, MAX_COUNTED + 1), selection.sample(allowed, _SHOWN)
    else:
        tally, shown = _read(selection, allowed)
    by_workflow, left_alone = Counter[str](), Counter[str]()
    for (state, workflow), number in tally.numbers.items():
        if state in allowed:
            by_workflow[workflow] += number
        else:
            left_alone[state] += number
    found = by_workflow.total()
    return Eligibility(
        count=min(found, MAX_COUNTED),
        is_capped=found > MAX_COUNTED or bool(tally.partial & allowed),
        by_workflow=tuple(each for each in by_workflow.most_common() if each[0]),
        left_alone=tuple((state, min(number, MAX_COUNTED)) for state, number in left_alone.most_common()),
        is_rest_capped=bool(tally.partial - allowed),
        shown=tuple(shown),
    )


def check_expected(verb: str, selection: Selection, expected: int) -> None:
    """Raise BulkCountError unless the selection has exactly `expected` runs that allow the verb now.

    More than MAX_COUNTED runs are expected as MAX_COUNTED.
    """
    found = count(verb, selection)
    if found.count != expected:
        raise BulkCountError(verb, expected, str(found))


def _read(selection: Selection, allowed: Collection[str]) -> tuple[Tally, Sequence[str]]:
    store = runtime.current().store
    numbers, shown = Counter[tuple[str, str]](), list[str]()
    cursor: str | None = None
    for _ in range(_LOOKS):
        ids, cursor = selection.page(cursor, min(_PAGE, MAX_COUNTED + 1 - numbers.total()))
        states = store.states(ids)
        numbers.update((states.get(each, ""), "") for each in ids)
        shown += [each for each in ids if states.get(each) in allowed][: _SHOWN - len(shown)]
        if cursor is None or numbers.total() > MAX_COUNTED:
            break
    unread: Iterable[str] = () if cursor is None else (*allowed, "")
    return Tally(numbers=numbers, partial=frozenset(unread)), shown
