"""Rules as they are written: what is read, what is refused, their text and their words."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable import cron, every
from durable.core.ids import check_id
from durable.schedules import check_name, read_rules, run_id_of
from durable.schedules.rules import MAX_NAME, duration_text, jitter_of
from durable.schedules.words import in_words

MOMENT = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("30 2 * * *", "30 2 * * *"),
        ("  30   2 * * mon-fri ", "30 2 * * MON-FRI"),
        (cron("*/5 * * * *"), "*/5 * * * *"),
        ("every 6 hours", "every 6 hours"),
        ("every 90 min", "every 1 hour 30 minutes"),
        ("EVERY 1 day offset 2h", "every 1 day offset 2 hours"),
        (every(timedelta(days=14)), "every 2 weeks"),
        ([cron("0 6 * * *"), "every 2 days"], "0 6 * * *; every 2 days"),
        ("0 6 * * *; every 2 days", "0 6 * * *; every 2 days"),
        ("0 6 * * *\n0 6 * * *", "0 6 * * *"),
    ],
)
def test_a_rule_has_a_text_that_is_read_again(given: Any, text: str) -> None:
    rules = read_rules(given)
    assert rules.text == text
    assert read_rules(rules.text).rules == rules.rules


@given(st.integers(1, 3_660 * 86_400), st.data())
def test_every_interval_has_a_text_that_is_read_again(seconds: int, data: st.DataObject) -> None:
    rule = every(seconds, offset=data.draw(st.integers(0, seconds - 1)))
    assert read_rules(rule.text).rules == (rule,)
    assert duration_text(timedelta(seconds=seconds))


@pytest.mark.parametrize(
    "given",
    [
        "",
        "   ;  ",
        "* * * *",
        "0 * * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 30 2 *",
        "0 0 * * MON#6",
        "5-1 * * * *",
        "*/0 * * * *",
        "1,,2 * * * *",
        "L * * * *",
        "0 0 * * 5L/2",
        "every",
        "every now and then",
        "every 0 s",
        "every 0.5 s",
        "every 6 hours offset 6 hours",
        "every 11 years",
        "every 20 weeks offset",
        "@daily",
        "٣ * * * *",
        "🙂 🙂 🙂 🙂 🙂",
        "* " * 2_000,
        "; ".join(f"{minute} 0 * * *" for minute in range(21)),
        [],
    ],
)
def test_what_is_no_rule_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_rules(given)


@given(st.text(alphabet="0123456789*/-,#L MONFRIJAWevry", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ValueError):
        rules = read_rules(text)
        assert read_rules(rules.text) == rules


@pytest.mark.parametrize("given", [7, None, True, [7], b"0 0 * * *"])
def test_what_is_no_text_is_refused(given: Any) -> None:
    with pytest.raises(TypeError):
        read_rules(given)


class TestOptions:
    def test_they_go_with_the_rule(self) -> None:
        rule = cron("0 0 * * *", zone="Europe/Berlin", overlap="queue", catch_up="none", window="12 hours", jitter=90)
        said = read_rules(rule).options.said()
        assert said == {
            "zone": "Europe/Berlin",
            "overlap": "queue",
            "catch_up": "none",
            "window": timedelta(hours=12),
            "jitter": timedelta(seconds=90),
        }

    def test_those_of_a_list_are_put_together(self) -> None:
        options = read_rules([cron("0 0 * * *", zone="Asia/Tokyo"), every("1 day", overlap="allow")]).options
        assert (options.zone, options.overlap, options.window) == ("Asia/Tokyo", "allow", None)

    def test_those_of_a_list_must_not_differ(self) -> None:
        with pytest.raises(ValueError, match="one zone"):
            read_rules([cron("0 0 * * *", zone="Asia/Tokyo"), cron("0 1 * * *", zone="UTC")])

    @pytest.mark.parametrize(
        "options",
        [
            {"zone": "Europe/Berlni"},
            {"zone": "../etc/passwd"},
            {"zone": ""},
            {"overlap": "drop"},
            {"catch_up": "some"},
            {"window": "-1 hour"},
            {"jitter": "a bit"},
        ],
    )
    def test_unknown_ones_are_refused(self, options: Any) -> None:
        with pytest.raises(ValueError, match=r"\w"):
            cron("0 0 * * *", **options)

    def test_a_mistyped_zone_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(ValueError, match="did you mean Europe/Berlin"):
            cron("0 0 * * *", zone="Europe/Berlni")


class TestNames:
    @pytest.mark.parametrize("name", ["a", "shop.nightly", "report-7", "Bericht für Köln 🌙", "x" * MAX_NAME])
    @pytest.mark.parametrize("moment", [MOMENT, MOMENT + timedelta(microseconds=7)])
    def test_the_ids_of_a_schedules_runs_are_legal(self, name: str, moment: datetime) -> None:
        assert check_id(run_id_of(check_name(name), moment)).startswith(f"{name}@2026-03-29T01:00:00")

    @pytest.mark.parametrize("name", ["", "a/b", "a\nb", "a\x00b", "\ud800", "x" * (MAX_NAME + 1)])
    def test_other_names_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="a schedule's name"):
            check_name(name)

    def test_the_form_of_an_id(self) -> None:
        assert run_id_of("shop.nightly", MOMENT) == "shop.nightly@2026-03-29T01:00:00Z"


class TestJitter:
    @given(st.text(max_size=5), st.integers(0, 10**9), st.integers(1, 100_000))
    def test_it_is_shorter_than_its_limit_and_always_the_same(self, name: str, second: int, limit: int) -> None:
        moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
        found = jitter_of(name, moment, timedelta(seconds=limit))
        assert timedelta(0) <= found < timedelta(seconds=limit)
        assert found == jitter_of(name, moment, timedelta(seconds=limit))

    def test_it_spreads_schedules_and_moments(self) -> None:
        limit = timedelta(minutes=10)
        by_name = {jitter_of(f"report-{each}", MOMENT, limit) // timedelta(minutes=1) for each in range(200)}
        by_moment = {
            jitter_of("x", MOMENT + timedelta(days=each), limit) // timedelta(minutes=1) for each in range(200)
        }
        assert by_name == by_moment == set(range(10))


@pytest.mark.parametrize(
    ("rule", "language", "words"),
    [
        ("30 2 * * *", "en", "At 02:30"),
        ("0 9 * * MON#1", "en", "At 09:00, on the first Monday of the month"),
        ("30 2 * * *", "de", "Um 02:30"),
        ("every 6 hours; 0 0 L * *", "en", "Every 6 hours; At 00:00, on the last day of the month"),
        ("30 2 * * *", "tlh", "At 02:30"),
    ],
)
def test_rules_in_words(rule: str, language: str, words: str) -> None:
    assert in_words(read_rules(rule).rules, language) == words
