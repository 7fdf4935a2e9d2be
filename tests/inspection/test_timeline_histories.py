"""Random histories: the timeline of each has the same members and failures, read whole or counted in the database."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import Final

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable.core.location import escape
from durable.inspection import history_counts, places, timeline, timeline_reads
from durable.inspection.places import stands_for
from durable.inspection.timeline import Row, Timeline, build_timeline
from durable.models import Entry, EntryMetadata, Run

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

MOST: Final = 40  # entries
OPENED: Final = 5  # rows of each history
_NAMES: Final = ("a", "a 1", "a 1 b", "part 10", "x#", "x#1", "50%", "a-b", "🎉", "#", "~1", "7", "-1", "A.1(", "a\n1")
_STEMS: Final = (
    "part {}",
    "part {}-b",
    "part {} of 2",
    "{}",
    "x#{}",
    "🎉{}",
    "n{}.(",
    "50%{}",
    "p/{}",
    "{}{}",
    "q{}\n",
)
_BAD: Final = ("failed", "exhausted", "running", "pending")
_FAILED: Final = ("failed", "exhausted")
#: How a history is read: entries of one that is read whole, entries inside of a page that are read, and windows.
_WAYS: Final = {
    "whole": (2_000, 300, (2_000, 20_000)),
    "counted": (0, 300, (2_000, 20_000)),
    "members closed": (0, 0, (2_000, 20_000)),
    "few at a time": (0, 300, (4, 7)),
    "few at a time, closed": (0, 0, (4, 7)),
}

Found = list[tuple[str, str]]  # locations and kinds, in the order in which they began


class _Program:
    """Joins, loops, steps and sleeps in each other, with names of every sort."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.found: Found = []

    def scope(self, around: str, depth: int) -> None:
        used: set[str] = set()
        for _ in range(self.chance.randint(1, 3)):
            names = [each for each in dict.fromkeys(self._names()) if each not in used]
            used.update(names)
            kind = self.chance.choice(["step", "step", "sleep", "join", "loop", "race"]) if depth < 4 else "step"
            for name in names:
                one = self.chance.choice(["step", "join", "sleep", "loop"]) if self.chance.random() < 0.1 else kind
                if len(self.found) < MOST:
                    self._entry(f"{around}/{name}" if around else name, one if depth < 4 else "step", depth)

    def _entry(self, location: str, kind: str, depth: int) -> None:
        self.found.append((location, kind))
        if kind in ("join", "race"):
            inside = dict.fromkeys(self._names())
        elif kind == "loop":
            first = self.chance.choice([0, 0, 3, 9])
            inside = dict.fromkeys(f"~{turn}" for turn in range(first, first + self.chance.choice([1, 2, 3, 12])))
        else:
            return
        state, is_same = self.chance.getstate(), self.chance.random() < 0.6
        for name in inside:
            if is_same:
                self.chance.setstate(state)
            self.scope(f"{location}/{name}", depth + 1)

    def _names(self) -> list[str]:
        if self.chance.random() < 0.5:
            return [escape(self.chance.choice(_NAMES))]
        stem, first = self.chance.choice(_STEMS), self.chance.choice([0, 1, 8, 97])
        numbers = range(first, first + self.chance.choice([2, 4, 5, 6, 9, 13]))
        return [escape(stem.replace("{}", str(number))) for number in numbers]


def history(chance: Random) -> tuple[Found, dict[str, str]]:
    """A history, and those of its entries that are not completed, with their statuses."""
    program = _Program(chance)
    program.scope("", 0)
    found = list(dict(program.found).items())
    if chance.random() < 0.4:  # what is in branches begins in any order, behind what is around it
        moments = {location: chance.random() for location, _ in found}
        for location in moments:
            above = location.rpartition("/")[0]
            while above:
                moments[location] = max(moments[location], moments.get(above, 0) + 0.001)
                above = above.rpartition("/")[0]
        found.sort(key=lambda each: moments[each[0]])
    share = chance.choice([0, 0.05])
    return found, {location: chance.choice(_BAD) for location, _ in found if chance.random() < share}


def recorded(run_id: str, found: Found, bad: dict[str, str]) -> Run:
    now = timezone.now()
    later = now + timedelta(days=1)
    run = Run.objects.create(id=run_id, workflow="w", input="[]", state="sleeping", created_at=now, wake_at=later)
    entries = [Entry(run=run, location=at, kind=kind, ordinal=2 * n) for n, (at, kind) in enumerate(found)]
    for each in Entry.objects.bulk_create(entries):
        each.metadata = EntryMetadata(
            entry=each,
            status=bad.get(each.location, "completed"),
            created_at=now,
            last_attempt_at=now,
            completed_at=None if each.location in bad else now,
        )
    EntryMetadata.objects.bulk_create(each.metadata for each in entries)
    return run


def members(found: Found, place: str) -> list[str]:
    """The members of a place in the order in which they began."""
    depth = place.count("/") + 1
    every = dict.fromkeys("/".join(at.split("/")[:depth]) for at, _ in found)
    named = [each for each in every if stands_for(place, each)]
    return named or [
        each for each in every if each.startswith(place.removesuffix("#")) and each.count("/") == depth - 1
    ]


def failures(location: str, bad: dict[str, str]) -> int:
    """How many entries at or inside of the location have failed."""
    return sum(status in _FAILED for at, status in bad.items() if f"{at}/".startswith(f"{location}/"))


def pages_of(run: Run, opened: str) -> Iterator[Timeline]:
    after = -1
    for _ in range(100):
        page = build_timeline(run, timezone.now(), opened=opened, after=after)
        yield page
        if page.more is None:
            return
        assert page.more > after
        after = page.more
    raise AssertionError(f"the pages of {opened} have no end")


def below(page: Timeline, opened: str) -> list[Row]:
    """The rows of the members on a page: none where a window had none."""
    at = next((number for number, row in enumerate(page.rows) if row.is_opened and row.opens == opened), None)
    if at is None:
        return []
    depth = page.rows[at].depth
    rest = page.rows[at + 1 :]
    end = next((number for number, row in enumerate(rest) if row.depth <= depth), len(rest))
    return [row for row in rest[:end] if row.depth == depth + 1]


def check(run: Run, found: Found, bad: dict[str, str]) -> None:
    first = build_timeline(run, timezone.now())
    assert not first.left_out
    outer = [row for row in first.rows if row.depth == 0]
    assert sum(row.failed for row in outer) == sum(status in _FAILED for status in bad.values())
    wanted = [row for row in first.rows if row.is_folded]
    done: set[str] = set()
    while wanted and len(done) < OPENED:
        row = wanted.pop(0)
        if row.opens in done:
            continue
        done.add(row.opens)
        expected = members(found, row.opens)
        if row.kind in ("step", "sleep", "message"):
            assert row.count == len(expected), row.opens
        pages = list(pages_of(run, row.opens))
        wanted += [each for page in pages for each in page.rows if each.is_folded]
        shown = [each for page in pages for each in below(page, row.opens)]
        if not any(each.opens == row.opens for page in pages for each in page.rows):
            continue  # within the one member around it, too few are equal to be folded: each of them has a row
        urgent = {each for each in expected if failures(each, bad)}
        names = [each.place for each in shown]
        assert [each for each in names if each not in urgent] == [each for each in expected if each not in urgent]
        assert urgent <= set(names), row.opens
        assert {each.place: each.failed for each in shown} == {each: failures(each, bad) for each in expected}


@settings(
    max_examples=6, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 1_000_000))
def test_each_member_is_on_a_page_with_its_failures(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    found, bad = history(Random(seed))
    Run.objects.filter(pk="run").delete()
    run = recorded("run", found, bad)
    for way, (exact, inside, windows) in _WAYS.items():
        with monkeypatch.context() as patch:
            patch.setattr(history_counts, "_results", OrderedDict())
            patch.setattr(timeline, "MOST_MEMBERS", 3)
            patch.setattr(places, "EXACT", exact)
            patch.setattr(timeline_reads, "_MOST_INSIDE", inside)
            patch.setattr(timeline_reads, "_WINDOWS", windows)
            try:
                check(run, found, bad)
            except Exception as error:
                error.add_note(f"{way}, seed {seed}, {len(found)} entries")
                raise
