"""The location functions against any text at all: nothing collides, leaves its segment, or crashes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable.core import location

any_text = st.text(st.characters(exclude_categories=()), min_size=1, max_size=location.MAX_NAME)


@given(any_text)
def test_a_name_comes_back_out_of_its_segment(name: str) -> None:
    segment = location.escape(name)
    assert location.unescape(segment) == name
    assert "/" not in segment
    assert "~" not in segment
    segment.encode()  # no lone surrogates
    assert "\x00" not in segment


@given(any_text, any_text)
def test_two_names_never_share_a_segment(one: str, other: str) -> None:
    assert (location.escape(one) == location.escape(other)) == (one == other)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_taken_for_a_segment(text: str) -> None:
    assert isinstance(location.unescape(text), str)
    assert isinstance(location.parent(text), str)


@given(st.lists(any_text, max_size=6), any_text)
def test_a_run_waits_for_the_queues_it_names_and_for_no_others(names: list[str], queue: str) -> None:
    waiting = location.waiting_text(frozenset(map(location.escape, names)))
    expected = not names or queue in names
    assert location.is_awaited(waiting, location.escape(queue)) is expected


@given(st.lists(any_text, min_size=1, max_size=40))
def test_a_location_that_is_too_long_is_refused(names: list[str]) -> None:
    path, refusal = "", ""
    try:
        for name in names:
            path = location.join(path, location.escape(name))
    except ValueError as error:
        refusal = str(error)
    assert len(refusal) < 1000
    assert len(path) <= location.MAX_LOCATION
    assert len(path.encode()) <= location.MAX_LOCATION_BYTES


def test_no_name_looks_like_a_segment_of_the_engines() -> None:
    taken = {location.iteration_segment(3), location.numbered_segment("send", 3), location.ANY_QUEUE}
    assert location.escape("~3") not in taken
    assert location.escape("send~3") not in taken
