"""A location has one spelling for people, in sentences, titles and links."""

import pytest

from durable.core.location import display_location, escape
from durable.core.summary import Summary, SummaryKind, asleep
from durable.core.words import Words


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("charge", "charge"),
        ("images/image 057/watermark", "images / image 057 / watermark"),
        ("chunks/~1128/slow chunk", "chunks / iteration 1,128 / slow chunk"),
        (f"{escape('a/b')}/{escape('~3')}", "a/b / ~3"),
        ("send~0", "send~0"),
        ("", ""),
    ],
)
def test_a_location_is_shown_with_its_names(location: str, shown: str) -> None:
    assert display_location(location) == shown


def test_an_iteration_is_told_in_the_language_of_the_page() -> None:
    class German(Words):
        def gettext(self, text: str) -> str:
            return text.replace("iteration", "Durchlauf")

    assert display_location("loop/~2", German()) == "loop / Durchlauf 2"


def test_a_summary_stores_the_location_and_shows_its_names() -> None:
    summary = Summary(SummaryKind.WAITING, doing=[asleep(f"loop/~2/{escape('a/b')}")], queues=None, until=None)
    assert summary == 'asleep in "loop / iteration 2 / a/b"'
    assert Summary.load(summary.stored) == summary
    assert Summary(SummaryKind.REPLAYED, location="loop/~2/poll") == "replayed from loop / iteration 2 / poll"
