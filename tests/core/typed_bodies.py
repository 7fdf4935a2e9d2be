"""Types of messages' bodies, for tests: at the top level of a module, where the codec finds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import NamedTuple, NotRequired, TypedDict
from uuid import UUID

from pydantic import BaseModel


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Approval:
    by: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.by == 13:
            raise ValueError("by must not be 13")


@dataclass
class Line:
    sku: UUID
    price: Decimal
    colour: Colour = Colour.RED


@dataclass
class Order:
    at: datetime
    lines: list[Line] = field(default_factory=list)


class Wish(TypedDict):
    what: str
    when: NotRequired[datetime]


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Profile(BaseModel):
    name: str
    age: int


@dataclass
class Node:
    name: str
    next: Node | None = None
