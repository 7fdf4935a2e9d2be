"""Rules as they are written, and their moments, compared with a search through every minute, in all zones."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable import cron, every
from durable.core.ids import check_id
from durable.schedules import check_name, read_rules, run_id_of
from durable.schedules.rules import MAX_NAME, duration_text, jitter_of, latest, next_after, upcoming
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


# -- the moments of rules, compared with a search through every minute, in all zones and over two years


ZONES = sorted(available_timezones() - {"localtime", "Factory"})
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = 2 * 366 * 24 * 60
MINUTE = timedelta(minutes=1)
HALF_A_DAY = timedelta(hours=12)
BERLIN = "Europe/Berlin"


def moments(rule: str, zone: str, after: datetime, count: int) -> list[datetime]:
    return list(islice(upcoming(read_rules(rule).rules, zone, after), count))


def local(text: str, zone: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


@dataclass(frozen=True)
class Fields:
    """A cron rule whose minutes, hours and weekdays are known without a parser."""

    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int]  # as Python counts them
    by_instants: bool

    @property
    def text(self) -> str:
        minutes = ",".join(map(str, sorted(self.minutes)))
        hours = ",".join(map(str, sorted(self.hours)))
        if self.by_instants:
            hours = "*" if len(self.hours) == 24 else "*/" + str(24 // len(self.hours))
        weekdays = "*" if len(self.weekdays) == 7 else ",".join(str((each + 1) % 7) for each in sorted(self.weekdays))
        return f"{minutes} {hours} * * {weekdays}"

    def match(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and wall.weekday() in self.weekdays


@st.composite
def some_fields(draw: st.DrawFn) -> Fields:
    by_instants = draw(st.booleans())
    step = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    hours = frozenset(range(0, 24, step)) if by_instants else frozenset(draw(st.sets(st.integers(0, 23), min_size=1)))
    weekdays = draw(st.one_of(st.just(set(range(7))), st.sets(st.integers(0, 6), min_size=1)))
    minutes = draw(st.sets(st.sampled_from([0, 15, 29, 30, 31, 45, 59]), min_size=1, max_size=3))
    return Fields(frozenset(minutes), hours, frozenset(weekdays), by_instants)


@cache
def changes(zone: str) -> list[datetime]:
    """Where the zone's offset changes within the two years, to the hour."""
    info = ZoneInfo(zone)
    hours = [START + timedelta(hours=each) for each in range(0, 2 * 366 * 24, 6)]
    offsets = [each.astimezone(info).utcoffset() for each in hours]
    return [hours[place] for place in range(1, len(hours)) if offsets[place] != offsets[place - 1]]


def searched(fields: Fields, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    """The moments between the two, found by looking at each minute's clock on the wall."""
    info = ZoneInfo(zone)
    margin = timedelta(hours=27)
    span = [begin - margin + timedelta(minutes=each) for each in range(int((end - begin + 2 * margin) / MINUTE))]
    walls = [each.astimezone(info).replace(tzinfo=None) for each in span]
    if fields.by_instants:
        found = {instant for instant, wall in zip(span, walls, strict=True) if fields.match(wall)}
    else:
        found = set()
        latest_wall = walls[0]
        for instant, wall in zip(span[1:], walls[1:], strict=True):
            while (
                latest_wall < wall
            ):  # each local minute once: what a gap leaves out is now, what comes again was before
                latest_wall += MINUTE
                if fields.match(latest_wall):
                    found.add(instant)
    return sorted(each for each in found if begin < each <= end)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_moments_are_those_that_a_search_through_every_minute_finds(data: st.DataObject) -> None:
    zone = data.draw(st.sampled_from(ZONES), label="zone")
    fields = data.draw(some_fields(), label="fields")
    near = changes(zone)
    anywhere = st.integers(0, MINUTES).map(lambda each: START + each * MINUTE)
    around = [each + timedelta(minutes=data.draw(st.integers(-1_500, 300), label="minutes")) for each in near]
    begin = data.draw(st.one_of(anywhere, *([st.sampled_from(around)] if around else [])), label="begin")
    end = begin + timedelta(days=2)

    found = list(until(fields.text, zone, begin, end))

    assert found == searched(fields, zone, begin, end)


def until(rule: str, zone: str, begin: datetime, end: datetime) -> Iterator[datetime]:
    for each in upcoming(read_rules(rule).rules, zone, begin):
        if each > end:
            return
        yield each


@pytest.mark.slow
def test_every_change_of_every_zone_in_two_years_is_as_searched() -> None:
    rules = [
        Fields(frozenset({0, 30}), frozenset(range(24)), frozenset(range(7)), by_instants=each)
        for each in (True, False)
    ]
    distinct: dict[tuple[datetime, str], str] = {}
    for zone in ZONES:
        for change in changes(zone):
            offsets = [(change + each).astimezone(ZoneInfo(zone)).utcoffset() for each in (-HALF_A_DAY, timedelta(0))]
            distinct[change, str(offsets)] = zone  # many names are of one zone
    assert len(distinct) > 20
    for (change, _), zone in distinct.items():
        begin, end = change - HALF_A_DAY, change + HALF_A_DAY
        for fields in rules:
            assert list(until(fields.text, zone, begin, end)) == searched(fields, zone, begin, end), zone


#: By what happens to a local time, a rule, since when it is asked, and the first moments.
CHANGED: dict[str, tuple[str, datetime, list[datetime]]] = {
    "one that does not exist runs at the first instant after the gap": (
        "30 2 * * *",
        local("2026-03-28T12:00", BERLIN),
        [datetime(2026, 3, 29, 1, 0, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC)],
    ),
    "several in the gap run once": (
        "0,20,40 2 * * *",
        local("2026-03-28T12:00", BERLIN),
        [datetime(2026, 3, 29, 1, 0, tzinfo=UTC), datetime(2026, 3, 30, 0, 0, tzinfo=UTC)],
    ),
    "one that occurs twice runs the first time": (
        "30 2 * * *",
        local("2026-10-24T12:00", BERLIN),
        [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)],
    ),
    "asked in the second of two equal hours, it does not go back": (
        "30 2 * * *",
        local("2026-10-25T02:10", BERLIN, fold=1),
        [datetime(2026, 10, 26, 1, 30, tzinfo=UTC)],
    ),
}


class TestChangesOfTheOffset:
    @pytest.mark.parametrize("what", CHANGED)
    def test_a_local_time(self, what: str) -> None:
        rule, after, expected = CHANGED[what]
        assert moments(rule, BERLIN, after, len(expected)) == expected

    @pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24)])
    def test_every_hour_follows_instants(self, day: str, hours: int) -> None:
        begin = local(f"{day}T00:00", BERLIN)
        found = [each for each in moments("0 * * * *", BERLIN, begin, 30) if each <= begin + timedelta(hours=hours)]
        assert found == [begin + timedelta(hours=each) for each in range(1, hours + 1)]

    def test_steps_in_the_hours_follow_instants_too(self) -> None:
        begin = local("2026-10-25T00:00", BERLIN)
        found = moments("0 0-23/2 * * *", BERLIN, begin, 3)
        assert found == [
            local("2026-10-25T02:00", BERLIN),
            local("2026-10-25T02:00", BERLIN, 1),
            local("2026-10-25T04:00", BERLIN),
        ]

    def test_a_day_that_the_zone_leaves_out(self) -> None:
        samoa = "Pacific/Apia"  # there was no 30th of December 2011
        assert moments("0 9 30 12 *", samoa, local("2011-12-29T12:00", samoa), 1) == [local("2011-12-31T00:00", samoa)]


class TestEvery:
    def test_moments_are_counted_from_a_fixed_instant(self) -> None:
        after = datetime(2026, 1, 1, 7, 3, 2, 5, tzinfo=UTC)
        assert moments("every 6 hours", BERLIN, after, 3) == [
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime(2026, 1, 1, 18, tzinfo=UTC),
            datetime(2026, 1, 2, 0, tzinfo=UTC),
        ]

    def test_an_offset_moves_them(self) -> None:
        after = datetime(2026, 1, 1, tzinfo=UTC)
        rule = every("1 day", offset="2 hours 30 minutes")
        assert next_after([rule], "UTC", after) == datetime(2026, 1, 1, 2, 30, tzinfo=UTC)

    @given(st.integers(1, 400_000), st.data())
    def test_the_next_moment_is_the_first_later_one(self, seconds: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, seconds - 1))
        after = data.draw(st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1))).replace(tzinfo=UTC)  # noqa: DTZ001
        found = next_after([every(seconds, offset=offset)], "UTC", after)
        assert found is not None
        assert timedelta(0) < found - after <= timedelta(seconds=seconds)
        assert (found - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() % seconds == offset


def test_a_list_has_the_moments_of_all_its_rules_once_each() -> None:
    rules = read_rules([cron("0 6 * * *"), cron("0 6,18 * * *"), every("12 hours")]).rules
    after = datetime(2026, 1, 1, tzinfo=UTC)
    assert [each.hour for each in islice(upcoming(rules, "UTC", after), 5)] == [6, 12, 18, 0, 6]


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("0 0 L * *", "2026-01-31"),
        ("0 0 LW * *", "2026-01-30"),
        ("0 0 * * MON#2", "2026-01-12"),
        ("0 0 * * 5L", "2026-01-30"),
        ("0 0 29 FEB *", "2028-02-29"),
        ("0 0 * * SUN", "2026-01-04"),
        ("0 0 * * 7", "2026-01-04"),
        ("0 0 13 * FRI", "2026-01-02"),  # as cron: either of the two, if both are restricted
    ],
)
def test_what_cron_fields_mean(rule: str, found: str) -> None:
    assert moments(rule, "UTC", datetime(2026, 1, 1, tzinfo=UTC), 1) == [local(f"{found}T00:00", "UTC")]


def test_the_year_9999_ends_all_rules() -> None:
    end = datetime(9999, 12, 31, 23, 59, 30, tzinfo=UTC)
    assert moments("0 0 * * *", BERLIN, end, 1) == []
    assert moments("every 6 hours", BERLIN, end, 1) == []


@given(st.integers(1, 30), st.integers(0, 200_000))
def test_the_newest_moments_of_a_period_are_found_from_its_end(most: int, minutes: int) -> None:
    rules = read_rules("*/7 * * * *").rules
    since = datetime(2026, 3, 1, tzinfo=UTC)
    until = since + timedelta(minutes=minutes % 5_000)
    everything = [since + timedelta(minutes=each) for each in range(minutes % 5_000 + 1)]
    expected = [each for each in everything if each.minute % 7 == 0]
    found, is_all = latest(rules, "UTC", since, until, most)
    assert found == expected[-most:]
    assert is_all == (len(expected) <= most)
