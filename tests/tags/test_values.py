"""The text by which a value of a tag is compared, and what no tag can be."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from durable.core.tags import HASHED, check_tags, tag_text

MOMENT = datetime(2026, 11, 24, 9, 30, tzinfo=UTC)


class Stage(str, enum.Enum):  # noqa: UP042  # as Django's TextChoices
    PAID = "paid"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("acme", "acme"),
        (" a=b:c ", " a=b:c "),
        ("👩‍🚀 ß\u0301", "👩‍🚀 ß\u0301"),
        ("\x00\ud800\x1a", "\x00\ud800\x1a"),
        ("x" * 200, "x" * 200),
        (Stage.PAID, "paid"),
        ("42", "42"),
        (42, "42"),
        (42.0, "42"),
        (Decimal("42.00"), "42"),
        (Level.HIGH, "3"),
        (-7, "-7"),
        (0, "0"),
        (-0.0, "0"),
        (Decimal("0E+9999"), "0"),
        (0.1, "0.1"),
        (Decimal("0.10"), "0.1"),
        (1e22, "1" + "0" * 22),
        (1e-7, "0.0000001"),
        (Decimal("1E+3"), "1000"),
        (10**199, "1" + "0" * 199),
        (100, "100"),
        (True, "true"),
        (False, "false"),
        (MOMENT, "2026-11-24T09:30:00Z"),
        (MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30))), "2026-11-24T09:30:00Z"),
        (MOMENT + timedelta(microseconds=1), "2026-11-24T09:30:00.000001Z"),
        (date(2026, 11, 24), "2026-11-24"),
    ],
)
def test_a_value_has_one_text(value: Any, text: str) -> None:
    found = tag_text("t", value)
    assert found == text
    assert type(found) is str
    assert tag_text("t", found) == found


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ("", ValueError, "leave the tag out for none"),
        ("x" * 201, ValueError, "has 201 characters"),
        (float("nan"), ValueError, "no number"),
        (Decimal("sNaN"), ValueError, "no number"),
        (float("-inf"), ValueError, "no number"),
        (1e300, ValueError, "200"),
        (10**200, ValueError, "201 characters"),
        pytest.param(10**5000, ValueError, "more than 200 digits", id="5001 digits"),
        (Decimal("1E+999999"), ValueError, "more than 200 digits"),
        (Decimal("1E-999999"), ValueError, "more than 200 digits"),
        (1e-300, ValueError, "more than 200 digits"),
        (datetime(2026, 1, 1), ValueError, "no time zone"),  # noqa: DTZ001
        (
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
            ValueError,
            "before the year 1 or after the year 9999",
        ),
        (HASHED + "00", ValueError, "only hashed values do"),
        (None, TypeError, "not NoneType: leave the tag out for none"),
        (b"acme", TypeError, "not bytes"),
        (["a"], TypeError, "not list"),
        (1j, TypeError, "not complex"),
        (timedelta(1), TypeError, "not timedelta"),
    ],
)
def test_what_is_no_value_is_refused(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        tag_text("sum", value)
    assert '"sum"' in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["tenant", "order-id", "Größe", "a.b/c", "x" * 200, "🎉"])
def test_what_is_a_name(name: str) -> None:
    assert check_tags({name: 1}) == {name: "1"}


@pytest.mark.parametrize("name", ["", "x" * 201, "a b", "a=b", "a:b", "a\nb", "\x00", "\ud800"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a tag's name is made of 1 to 200"):
        check_tags({name: 1})


def test_tags_are_a_dict_of_names() -> None:
    wrong: Any
    for wrong in ("tenant=acme", [("tenant", "acme")], {1: "acme"}, {"tenant"}):
        with pytest.raises(TypeError):
            check_tags(wrong)


def test_a_run_has_eight_tags_at_most() -> None:
    eight = {f"t{number}": number for number in range(8)}
    assert len(check_tags(eight)) == 8
    with pytest.raises(ValueError, match="at most 8 tags, and these are 9"):
        check_tags({**eight, "t8": 8})
