"""What is kept of a history for each open stream: as much as is needed, and little of it."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from durable.api.changes import UNKNOWN, KnownEntry, Marks, ReaderState

ENTRIES = 20_000


def test_an_entry_takes_few_bytes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        state = ReaderState()
        for key in range(ENTRIES):
            state.put(key + 1, key, f"turns/~{key}/a step with a long name")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(state) == ENTRIES
    assert taken / ENTRIES < 40


@pytest.mark.parametrize("seed", range(5))
def test_it_knows_what_was_put_in(seed: int) -> None:
    """Beside a plain dict, with keys in any order and entries that go."""
    chance = random.Random(seed)
    state, plain = ReaderState(), dict[int, KnownEntry]()
    for _ in range(1500):
        key, mark = chance.randrange(1, 2000), chance.choice([UNKNOWN, chance.randrange(2**63)])
        state.put(key, mark, f"place {key} \ud800")
        plain[key] = KnownEntry(key, mark, f"place {key} \ud800")
        if chance.random() < 0.02:
            kept = {each for each in plain if chance.random() < 0.9}
            gone = state.keep(kept)
            assert gone == [plain[each] for each in sorted(plain) if each not in kept]
            plain = {each: plain[each] for each in kept}
        assert len(state) == len(plain)
        assert state.newest == max(plain, default=0)
        some = chance.randrange(1, 2000)
        assert state.mark(some) == (plain[some].mark if some in plain else None)
    assert list(state.marks) == [(each, plain[each].mark) for each in sorted(plain)]
    assert [each.location for each in state.keep(set())] == [plain[each].location for each in sorted(plain)]


def test_marks_go_in_their_order() -> None:
    marks = Marks([(3, 30), (1, 10), (2, 20)])
    assert marks.first(2) == [(3, 30), (1, 10)]
    marks.drop(2)
    assert (len(marks), marks.first(9)) == (1, [(2, 20)])
