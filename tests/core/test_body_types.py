"""What fits the type of a body, what JSON becomes, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest

from durable.core.body_types import Misfit, check_type, example_of, fit, schema_of
from tests.core.typed_bodies import Approval, Colour, Line, Node, Order, Point, Profile, Wish

SKU = "0f8fad5b-d9cb-469f-a165-70867728950e"
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
Cents = NewType("Cents", int)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ({"by": 7}, Approval, Approval(7)),
        (Approval(7), Approval, Approval(7)),
        (
            {"at": "2026-01-31T12:00:00Z", "lines": [{"sku": SKU, "price": 9.99, "colour": "blue"}]},
            Order,
            Order(MOMENT, [Line(UUID(SKU), Decimal("9.99"), Colour.BLUE)]),
        ),
        ({"what": "tea"}, Wish, {"what": "tea"}),
        ({"what": "tea", "when": "2026-01-31T12:00:00Z"}, Wish, {"what": "tea", "when": MOMENT}),
        ([1, 2], Point, Point(1.0, 2.0)),
        ({"x": 1}, Point, Point(1.0)),
        ({"name": "Ada", "age": 36}, Profile, Profile(name="Ada", age=36)),
        ({"name": "a", "next": {"name": "b"}}, Node, Node("a", Node("b"))),
        (3, float, 3.0),
        ("9.99", Decimal, Decimal("9.99")),
        ("2026-01-31", date, date(2026, 1, 31)),
        ("12:30:00", time, time(12, 30)),
        ("3 hours", timedelta, timedelta(hours=3)),
        (60, timedelta, timedelta(minutes=1)),
        (None, None, None),
        (None, Approval | None, None),
        ({"by": 7}, Approval | None, Approval(7)),
        ({"name": "Ada", "age": 1}, Approval | Profile, Profile(name="Ada", age=1)),
        ("yes", Literal["yes", "no"], "yes"),
        ([1, 1, 2], set[int], {1, 2}),
        ([1, "a"], tuple[int, str], (1, "a")),
        ((1, 2), list[int], [1, 2]),
        ({"7": {"by": 1}}, dict[int, Approval], {7: Approval(1)}),
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        (5, Cents, 5),
        (5, Annotated[int, "cents"], 5),
        ({"any": [1]}, object, {"any": [1]}),
        ({"any": [1]}, dict, {"any": [1]}),
    ],
)
def test_json_becomes_a_value_of_the_type(value: Any, hint: Any, expected: Any) -> None:
    check_type(hint, "x")
    fitted = fit(value, hint)
    assert fitted == expected
    assert type(fitted) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "faults"),
    [
        ({"by": "secret"}, Approval, ["by: expected a whole number, found text"]),
        ({"by": True}, Approval, ["by: expected a whole number, found a boolean"]),
        ({}, Approval, ["by: is missing"]),
        ({"by": 1, "nte": ""}, Approval, ['nte: is not a field of Approval, did you mean "note"?']),
        ({"by": 1, "zzz": ""}, Approval, ["zzz: is not a field of Approval; it has by, note"]),
        ({"by": 13}, Approval, ["by must not be 13"]),
        ("secret", Approval, ["expected an object, found text"]),
        (None, Approval, ["expected an object, found null"]),
        (
            {"at": "noon", "lines": [{"sku": "secret", "price": True, "colour": "pink"}]},
            Order,
            [
                'at: expected a moment, such as "2026-01-31T12:00:00+00:00", found text',
                "lines/0/sku: expected a UUID, found text",
                "lines/0/price: expected a decimal number, found a boolean",
                "lines/0/colour: expected one of 'red', 'blue'",
            ],
        ),
        (
            {"name": "Ada", "age": "secret"},
            Profile,
            ["age: Input should be a valid integer, unable to parse string as an integer"],
        ),
        ({"what": 1}, Wish, ["what: expected text, found a whole number"]),
        ([1, 2, 3], Point, ["expected a list of at most 2, found one of 3"]),
        (3.5, int, ["expected a whole number, found a number"]),
        ("maybe", Literal["yes", "no"], ["expected one of 'yes', 'no'"]),
        (1, Literal[True], ["expected one of True"]),
        (1, None, ["expected null, found a whole number"]),
        ("x", int | None, ["expected a whole number or null, found text"]),
        ({"by": "x"}, Approval | None, ["by: expected a whole number, found text"]),
        (["a"], tuple[int, str], ["expected a list of 2, found one of 1"]),
        ([[1]], set, ["expected a list of values that a set can have, found a list"]),
        ("abc", list[str], ["expected a list, found text"]),
        ([1], dict[str, int], ["expected an object, found a list"]),
        ("-1 parsecs", timedelta, None),
        (datetime(2026, 1, 1, tzinfo=UTC), date, None),
        (float("nan"), Decimal, None),
    ],
)
def test_a_fault_names_the_place_and_not_the_value(value: Any, hint: Any, faults: list[str] | None) -> None:
    with pytest.raises(Misfit) as caught:
        fit(value, hint)
    if faults is not None:
        assert [str(each) for each in caught.value.faults] == faults
    assert "secret" not in str(caught.value)


def test_faults_are_few_short_and_printable() -> None:
    with pytest.raises(Misfit) as caught:
        fit({"lines": [{"sku": number} for number in range(50)], "a\0\ud800": 1, "b" * 9_999: 2}, Order)
    faults = caught.value.faults
    assert len(faults) == 21
    assert faults[-1] == ("", "and 83 more")
    with pytest.raises(Misfit) as caught:
        fit({"by": 1, "a\0\ud800": 1, "b" * 9_999: 2}, Approval)
    first, second = caught.value.faults
    assert first.at == r"a\x00\ud800"
    assert len(str(second)) < 300


def test_a_body_that_is_nested_too_deeply_does_not_fit() -> None:
    body: dict[str, Any] = {"name": "x"}
    for _ in range(5_000):
        body = {"name": "x", "next": body}
    with pytest.raises(Misfit, match="is nested too deeply"):
        fit(body, Node)


@pytest.mark.parametrize("hint", [3, "text", Callable, type("Stranger", (), {}), list[bytearray]])
def test_what_is_no_type_of_a_body_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="not a type that a message can have: use a dataclass"):
        check_type(hint, 'the message "x"')


def test_a_schema_has_the_fields_and_an_example_fits_the_type() -> None:
    assert schema_of(Approval) == {
        "type": "object",
        "title": "Approval",
        "properties": {"by": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["by"],
        "additionalProperties": False,
    }
    assert schema_of(Node)["properties"]["next"] == {"anyOf": [{"type": "object", "title": "Node"}, {"type": "null"}]}
    assert schema_of(object) == {}
    assert schema_of(Profile)["properties"].keys() == {"name", "age"}


@pytest.mark.parametrize(
    "hint", [Approval, Order, Line, Wish, Point, Profile, Node, None, list[int], dict[str, int], int | None, object]
)
def test_an_example_fits_its_type(hint: Any) -> None:
    fit(example_of(schema_of(hint)), hint)
