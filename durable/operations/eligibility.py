"""Counts of a bulk's selection: the runs that it would act on, by workflow, those that it would leave alone, and the
children that its replays would start again.

A selection that can count itself (`Countable`) is counted along the database's indexes. Any other selection is read
page by page, up to `MAX_COUNTED` runs. To count children, the replays of a limited number of runs with children are
planned. That count is exact, and the note says for how many runs it was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from durable import runtime
from durable.core.causes import failed_at
from durable.core.errors import BulkCountError, EntryNotFoundError
from durable.core.records import EntryRecord, RunRecord, RunState
from durable.core.rewind.replay import Replay
from durable.core.tally import HELD, Tally
from durable.core.transitions import ALLOWED
from durable.core.words import Sentence, gettext_noop
from durable.operations.replay import relatives_of
from durable.operations.replay_plan import of_unread_maps, refusals_of, running_steps, starts_again, starts_note
from durable.runtime import Runtime

MAX_COUNTED: Final = 10_000  # eligible runs; beyond them the number is "more than" this
_STATES: Final[Mapping[str, Collection[str]]] = {
    **ALLOWED,
    "replay": (RunState.FAILED,),  # a bulk replays from where runs have failed
    "recover": (*ALLOWED["recover"], HELD),
    "settle": (HELD,),
}
_PAGE: Final = 200  # runs of a page of a selection that cannot count itself
_LOOKS: Final = 100  # pages to read of it: a page of a selection may hold few runs
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
        """Count the runs, up to `most` of each state: those in `states` by workflow, others by state alone.

        `states` may have `HELD`. Where a selection can tell runs with a held step from others, it counts them so.
        """

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return up to `limit` ids of runs in `states`."""


@runtime_checkable
class Narrowed(Protocol):
    """A selection of runs that can be limited to some states."""

    def narrowed(self, states: Collection[str]) -> Selection:
        """Return the selection of those runs that are in one of these states when a page is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """The selected runs whose state allows a verb now.

    `count` is exact unless `is_capped`: there are more, or may be more where the selection could not be counted to its
    end. `by_workflow` has the numbers by workflow, the largest first; it is empty if the workflows are not known.
    `left_alone` has the numbers of the other selected runs by state ("" for ids that no run has); `is_rest_capped`:
    there are, or may be, more of these. `shown` holds the first few eligible ids.
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
    """Return the states that allow the verb, and `HELD` if it is meant for runs with a held step."""
    return frozenset(str(each) for each in _STATES[verb])


def states_of(ids: Sequence[str], allowed: Collection[str]) -> dict[str, str]:
    """Return the states of these runs, by id; `HELD` for a run with a held step, if that is allowed.

    One statement, and one more if it is. Runs that do not exist are left out.
    """
    store = runtime.current().store
    states: dict[str, str] = dict(store.states(ids))
    if HELD in allowed:
        states |= dict.fromkeys(store.held_among(ids), HELD)
    return states


def place_of(selection: Selection) -> str:
    """Return the `place` of a selection of the runs of a cause; "" for any other one. At most one statement."""
    place: str = getattr(selection, "place", "")  # not by a protocol: `isinstance` reads the property too before 3.12
    return place


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

    More than MAX_COUNTED runs count as MAX_COUNTED.
    """
    found = count(verb, selection)
    if found.count != expected:
        raise BulkCountError(verb, expected, str(found))


def _read(selection: Selection, allowed: Collection[str]) -> tuple[Tally, Sequence[str]]:
    numbers, shown = Counter[tuple[str, str]](), list[str]()
    cursor: str | None = None
    for _ in range(_LOOKS):
        ids, cursor = selection.page(cursor, min(_PAGE, MAX_COUNTED + 1 - numbers.total()))
        states = states_of(ids, allowed)
        numbers.update((states.get(each, ""), "") for each in ids)
        shown += [each for each in ids if states.get(each) in allowed][: _SHOWN - len(shown)]
        if cursor is None or numbers.total() > MAX_COUNTED:
            break
    unread: Iterable[str] = () if cursor is None else (*allowed, "")
    return Tally(numbers=numbers, partial=frozenset(unread)), shown


LOOKED_AT: Final = 500  # runs of a selection that are examined for children
PLANNED: Final = 20  # runs with children that are planned
_SHORT: Final = 1_000  # entries of a history that is read with others
_SIZE: Final = 512 * 1024  # bytes of values of such a history
_LONG: Final = 10  # this many short histories cost as much as a long one
_ENTRIES_PAGE: Final = 100  # runs


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStarts:
    """The children that replays of failed runs start again, each replay from where its run failed.

    `looked_at` runs were examined: `parents` of them start `children` children again, by workflow in `workflows`, the
    most frequent first. They are new runs with new idempotency keys. `is_partial`: there are or may be more runs, and
    these may start more. `runs` is the number of all runs in words: "12", "more than 10,000".
    """

    looked_at: int
    parents: int
    children: int
    workflows: tuple[tuple[str, int], ...]
    is_partial: bool
    runs: str

    @property
    def note(self) -> str:
        """A sentence for the person who decides; "" if all runs were examined and start none again."""
        found = starts_note(dict(self.workflows))
        if not self.is_partial:
            return found
        told = {"looked": f"{self.looked_at:,}", "runs": self.runs}
        if not found:
            return Sentence(gettext_noop("{looked} of {runs} runs were examined, and start no children again"), **told)
        return Sentence(
            gettext_noop("{note}. This was counted for {looked} of {runs} runs: the others may start more"),
            note=found,
            **told,
        )


class StartsCounter:
    """Counts the children that replays start again.

    Takes failed runs a page at a time, until `most` runs with children were planned.
    """

    def __init__(self, most: int = PLANNED) -> None:
        self.looked_at = 0
        self.parents = 0
        self.is_over = False
        self._left = most
        self._numbers: Counter[str] = Counter()

    def add(self, ids: Sequence[str]) -> dict[str, int]:
        """Return, by run, the numbers of children for the runs that were examined.

        Once a run is left out, all later ones are too. A run that has not failed starts nothing. Four statements, and
        two to eight for each run that starts children again.
        """
        if self.is_over or not ids:
            return {}
        at = runtime.current()
        with_children = at.store.parents_among(ids)
        chosen = [each for each in ids if each in with_children][: self._left + 1]
        runs = {name: run for name, run in at.store.get_many(chosen).items() if run.state == RunState.FAILED}
        histories = at.store.load_short(list(runs), _SHORT, _SIZE) if runs else {}
        found: dict[str, int] = {}
        for each in ids:
            run = runs.get(each)
            if each in with_children:
                cost = 1 if run is None or each in histories else _LONG
                if cost > self._left or each not in chosen:
                    self.is_over = True
                    break
                self._left -= cost
            numbers = Counter[str]()
            if run is not None:
                entries = histories[each] if each in histories else at.store.history(each)
                numbers.update(dict(_numbers(at, run, entries)))
            found[each] = numbers.total()
            self.looked_at += 1
            self.parents += bool(numbers)
            self._numbers += numbers
        return found

    def counted(self, runs: int | str, *, is_partial: bool = False) -> BulkStarts:
        """Return the counts. `runs` is the number of all runs, in words if it is not known."""
        return BulkStarts(
            looked_at=self.looked_at,
            parents=self.parents,
            children=self._numbers.total(),
            workflows=tuple(self._numbers.most_common()),
            is_partial=self.is_over or is_partial,
            runs=runs if isinstance(runs, str) else f"{runs:,}",
        )


def starts_of_run(run_id: str) -> BulkStarts:
    """Count the children that the replay of one run, from where it failed, starts again."""
    counter = StartsCounter()
    counter.add([run_id])
    return counter.counted(1)


def starts_of_bulk(verb: str, selection: Selection, eligible: Eligibility) -> BulkStarts | None:
    """Count the children that a bulk with these eligible runs starts again; None for a verb that starts none.

    Examines at most `LOOKED_AT` runs, and at most `PLANNED` with children.
    """
    if verb != "replay":
        return None
    counter = StartsCounter()
    for page in _pages(selection, allowed_states(verb)):
        counter.add(page)
    is_partial = eligible.is_capped or counter.looked_at < eligible.count
    runs = Sentence(gettext_noop("more than {number}"), number=f"{eligible.count:,}") if eligible.is_capped else ""
    return counter.counted(runs or eligible.count, is_partial=is_partial)


def _pages(selection: Selection, allowed: frozenset[str]) -> Iterator[Sequence[str]]:
    """Yield the first runs of the selection that are in these states."""
    if isinstance(selection, Countable):
        ids = selection.sample(allowed, LOOKED_AT)
        yield from (ids[begin : begin + _ENTRIES_PAGE] for begin in range(0, len(ids), _ENTRIES_PAGE))
        return
    store, cursor, left = runtime.current().store, None, LOOKED_AT
    while left > 0:
        page, cursor = selection.page(cursor, min(_ENTRIES_PAGE, left))
        left -= len(page)
        states = store.states(page)
        yield [each for each in page if states.get(each) in allowed]
        if cursor is None or not page:
            return


def _numbers(at: Runtime, run: RunRecord, entries: Iterable[EntryRecord]) -> Iterator[tuple[str, int]]:
    """Yield how many children the replay of a run, from where it failed, starts again, by workflow.

    Yields nothing if that replay is refused.
    """
    location = failed_at(run.error, run.origins)
    if not location:
        return
    try:
        replay = Replay(run, sorted(entries, key=lambda entry: entry.ordinal), (), location)
    except EntryNotFoundError:
        return
    starts = starts_again(at.store, replay)
    if not starts:
        return
    relatives = relatives_of(at, replay, starts)
    if refusals_of(replay, relatives, running_steps(replay.history), at.now()) or [*of_unread_maps(relatives)]:
        return
    totals: Counter[str] = Counter()
    for each in starts:
        totals[each.workflow] += each.number
    yield from totals.items()
