"""Regions of a history that are said with fewer conditions have the same entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable.core.rewind.rewinding import Region, simplified

LOCATIONS = ["a", "a/b", "a/b/c", "a/d", "ab", "e", "e/f"]
ORDINALS = range(6)

regions = st.builds(Region, st.sampled_from(["", *LOCATIONS]), st.integers(-1, 4), st.sampled_from(["", *LOCATIONS]))


@given(st.lists(regions, max_size=5))
def test_the_same_entries_are_in_simplified_regions(given_regions: list[Region]) -> None:
    found = simplified(given_regions)
    assert len(found) <= len(given_regions)
    for location in LOCATIONS:
        for ordinal in ORDINALS:
            is_in = any(each.covers(location, ordinal) for each in given_regions)
            assert any(each.covers(location, ordinal) for each in found) is is_in


def test_what_another_region_has_is_not_left_out() -> None:
    """A replay at a step deletes the step with all inside, and what began later beside it."""
    assert simplified([Region("a"), Region("", 4, "a")]) == [Region("", 4), Region("a")]
    assert simplified([Region("a", 3), Region("", 4, "a")]) == [Region("", 4, "a"), Region("a", 3)]
