"""Generic frozen dataclasses that can be made with their type arguments: `StepResult[str](ok=True)`."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TypeVar

T = TypeVar("T")


def frozen(cls: type[T]) -> type[T]:
    """Refuse each assignment to an instance of a frozen dataclass with slots, with FrozenInstanceError.

    `typing` tries to assign `__orig_class__` to what `cls[X](...)` makes, and goes on if that is an AttributeError. The
    dataclass's own `__setattr__` raises TypeError for a name that is no field: it refers to the class without slots.
    """

    def refuse(self: T, name: str, _value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to {name!r} of {type(self).__name__}")

    cls.__setattr__ = refuse  # type: ignore[assignment]  # of the class, for all of its instances
    return cls
