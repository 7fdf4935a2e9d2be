"""Public generic values: made with their type arguments, pickled, copied, and never assigned to."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from durable import BlockResult, Handle, MapChild, MapResult, RaceResult, StepResult
from durable.definitions import Input

MADE: list[tuple[Callable[[], Any], Any]] = [
    (lambda: Handle[str]("order-1"), Handle("order-1")),
    (lambda: Handle[object]("order-1", is_new=True), Handle("order-1")),
    (lambda: StepResult[str](ok=True, value="sent"), StepResult(ok=True, value="sent")),
    (lambda: BlockResult[int](ok=True, value=1), BlockResult(ok=True, value=1)),
    (lambda: RaceResult[int]("one", 1), RaceResult("one", 1)),
    (lambda: MapChild[int](0, "a", "completed", 1), MapChild(0, "a", "completed", 1)),
    (lambda: MapResult[int]([]), MapResult([])),
    (lambda: Input[[int]]("shop.buy", (1,), {}), Input("shop.buy", (1,), {})),
]


@pytest.mark.parametrize(("make", "expected"), MADE)
class TestTypeArguments:
    def test_an_instance_is_made_with_them(self, make: Callable[[], Any], expected: Any) -> None:
        assert make() == expected
        assert type(make()) is type(expected)

    @pytest.mark.parametrize("name", ["id", "ok", "winner", "number", "children", "workflow", "misspelt"])
    def test_nothing_can_be_assigned(self, make: Callable[[], Any], expected: Any, name: str) -> None:
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to {name!r} of {type(expected).__name__}"):
            setattr(make(), name, 1)

    def test_a_copy_and_a_pickle_are_equal(self, make: Callable[[], Any], expected: Any) -> None:
        assert copy.deepcopy(make()) == expected
        assert pickle.loads(pickle.dumps(make())) == expected
