"""The children that the replays of many failed runs start again: counted before anything is done, at a bounded cost.

A run without children costs a share of two statements. A run with children is planned as its replay would be
(`durable.operations.replay_starts`), up to a number of them: what was counted is exact, and the note says for how many
runs it was counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from durable import runtime
from durable.core.causes import failed_at
from durable.core.errors import EntryNotFoundError
from durable.core.records import EntryRecord, RunRecord, RunState
from durable.core.replay import Replay
from durable.core.words import Sentence, gettext_noop
from durable.operations.eligibility import Countable, Eligibility, Selection, allowed_states
from durable.operations.replay_plan import of_unread_maps, refusals_of, running_steps
from durable.operations.replay_preview import family_of
from durable.operations.replay_starts import starts_again, starts_note
from durable.runtime import Runtime

LOOKED_AT: Final = 500  # runs of a selection whose children are looked for
PLANNED: Final = 20  # runs with children that are planned
_SHORT: Final = 1_000  # entries of a history that is read with others
_SIZE: Final = 512 * 1024  # bytes of values of such a history
_LONG: Final = 10  # so many short histories cost what a long one does
_PAGE: Final = 100  # runs


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStarts:
    """The children that replays of failed runs, each from where it failed, start again.

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
    """A counter of what replays start again.

    It takes failed runs a page at a time, until `most` runs with children were planned.
    """

    def __init__(self, most: int = PLANNED) -> None:
        self.looked_at = 0
        self.parents = 0
        self.is_over = False
        self._left = most
        self._numbers: Counter[str] = Counter()

    def add(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of children by the ids of the runs that were examined; of others nothing is known.

        Once a run was left out, so are all that follow. A run that is not failed starts nothing. Four statements and
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
        """Return what was found. `runs` is the number of all runs, in words where it is not known."""
        return BulkStarts(
            looked_at=self.looked_at,
            parents=self.parents,
            children=self._numbers.total(),
            workflows=tuple(self._numbers.most_common()),
            is_partial=self.is_over or is_partial,
            runs=runs if isinstance(runs, str) else f"{runs:,}",
        )


def starts_of_run(run_id: str) -> BulkStarts:
    """Return what the replay of one run, from where it failed, starts again."""
    counter = StartsCounter()
    counter.add([run_id])
    return counter.counted(1)


def starts_of_bulk(verb: str, selection: Selection, eligible: Eligibility, *, most: int = PLANNED) -> BulkStarts | None:
    """Return what a bulk starts again, whose runs were counted as `eligible`; None of a verb that starts no run again.

    At most `LOOKED_AT` runs are examined, and `most` of those with children.
    """
    if verb != "replay":
        return None
    counter = StartsCounter(most)
    for page in _pages(selection, allowed_states(verb)):
        counter.add(page)
    is_partial = eligible.is_capped or counter.looked_at < eligible.count
    runs = Sentence(gettext_noop("more than {number}"), number=f"{eligible.count:,}") if eligible.is_capped else ""
    return counter.counted(runs or eligible.count, is_partial=is_partial)


def _pages(selection: Selection, allowed: frozenset[str]) -> Iterator[Sequence[str]]:
    """Yield the first runs of the selection that are in these states."""
    if isinstance(selection, Countable):
        ids = selection.sample(allowed, LOOKED_AT)
        yield from (ids[begin : begin + _PAGE] for begin in range(0, len(ids), _PAGE))
        return
    store, cursor, left = runtime.current().store, None, LOOKED_AT
    while left > 0:
        page, cursor = selection.page(cursor, min(_PAGE, left))
        left -= len(page)
        states = store.states(page)
        yield [each for each in page if states.get(each) in allowed]
        if cursor is None or not page:
            return


def _numbers(at: Runtime, run: RunRecord, entries: Iterable[EntryRecord]) -> Iterator[tuple[str, int]]:
    """Yield how many children the replay of a run from where it failed starts again, by workflow.

    Yield nothing if that replay is refused.
    """
    in_order = sorted(entries, key=lambda entry: entry.ordinal)
    location = failed_at(run, {each.location: each for each in in_order}.get)
    if not location:
        return
    try:
        replay = Replay(run, in_order, (), location)
    except EntryNotFoundError:
        return
    starts = starts_again(at.store, replay)
    if not starts:
        return
    family = family_of(at, replay, starts)
    if refusals_of(replay, family, running_steps(replay.history), at.now()) or [*of_unread_maps(family)]:
        return
    totals: Counter[str] = Counter()
    for each in starts:
        totals[each.workflow] += each.number
    yield from totals.items()
