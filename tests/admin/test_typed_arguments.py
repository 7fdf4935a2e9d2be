"""Arguments that a person types are compared with annotations that JSON can tell, and with no others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import pytest

from durable.admin.start_page import misfit


def typed(  # type: ignore[no-untyped-def]  # one of its parameters has no annotation
    ctx: Any,
    number: int = 0,
    part: float = 0,
    name: str | None = None,
    flag: bool = False,
    tags: list[str] | None = None,
    options: dict[str, int] | None = None,
    how: Literal["fast", "slow"] = "fast",
    amount: Decimal | str = "",
    free: Any = None,
    plain=None,
    *rest: int,
    limit: int = None,  # type: ignore[assignment]  # noqa: RUF013  # a habit of some projects
) -> None:
    """A workflow's function."""


def unresolved(ctx: Any, order: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821  # as below
    """A function with an annotation that only a type checker can resolve."""


def odd(ctx: Any, order: [int]) -> None:  # type: ignore[misc, valid-type]  # a project's code may have it
    """A function with an annotation that is no type."""


@pytest.mark.parametrize(
    "kwargs",
    [
        {"number": 7},
        {"part": 7},
        {"part": 7.5},
        {"name": None},
        {"name": "ada"},
        {"flag": True},
        {"tags": ["a"]},
        {"tags": None},
        {"options": {}},
        {"how": "slow"},
        {"amount": 7},
        {"free": [1]},
        {"plain": {}},
        {"nobody": 1},
        {"limit": None},
    ],
)
def test_what_fits(kwargs: dict[str, Any]) -> None:
    assert misfit(typed, [], kwargs) is None


@pytest.mark.parametrize(
    ("kwargs", "annotation"),
    [
        ({"number": "7"}, "int"),
        ({"number": None}, "int"),
        ({"number": True}, "int"),
        ({"number": 7.5}, "int"),
        ({"part": "7"}, "float"),
        ({"name": 7}, "str | None"),
        ({"flag": 1}, "bool"),
        ({"tags": "a"}, "list[str] | None"),
        ({"options": []}, "dict[str, int] | None"),
        ({"limit": "7"}, "int"),
        ({"how": "no"}, "Literal['fast', 'slow']"),
    ],
)
def test_what_does_not_fit(kwargs: dict[str, Any], annotation: str) -> None:
    found = misfit(typed, [], kwargs)
    assert found is not None
    assert (found[0], found[1].replace("typing.", "")) == (*kwargs, annotation)


def test_positional_arguments_are_compared_too() -> None:
    assert misfit(typed, [7, "half"], {}) == ("part", "float", '"half"')
    assert misfit(typed, [*(1, 1, "a", True, [], {}, "fast", "1", 1, 1), "rest"], {}) is None


def test_what_cannot_be_resolved_accepts_everything() -> None:
    assert misfit(unresolved, ["x"], {}) is None
    assert misfit(odd, ["x"], {}) is None


def test_a_long_value_is_cut() -> None:
    found = misfit(typed, ["x" * 10_000], {})
    assert found is not None
    assert len(found[2]) <= 60
