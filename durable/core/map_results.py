"""Results of `ctx.map`. Frozen data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from durable.core.errors import ErrorInfo
from durable.core.results import frozen

T_co = TypeVar("T_co", covariant=True)


@frozen
@dataclass(frozen=True, slots=True)
class MapChild(Generic[T_co]):
    """The end of one child of a map.

    `number` is the index of its arguments among the inputs, from 0. A completed child has an `output`, a failed one an
    `error`; `reason` says why one was cancelled, or is "".
    """

    number: int
    child_id: str
    state: Literal["completed", "failed", "cancelled"]
    output: T_co | None = None
    error: ErrorInfo | None = None
    reason: str = ""


@frozen
@dataclass(frozen=True, slots=True)
class MapResult(Generic[T_co]):
    """The children of a map that has ended, one for each input and in the order of the inputs.

    `outputs` has the outputs of the completed children, `failed` and `cancelled` the other children. If there are no
    others, `outputs[n]` belongs to input `n`; else use `child.number` of `children`, or iterate over the result.
    """

    children: Sequence[MapChild[T_co]]

    def __iter__(self) -> Iterator[MapChild[T_co]]:
        return iter(self.children)

    def __len__(self) -> int:
        return len(self.children)

    @property
    def outputs(self) -> list[T_co]:
        """The outputs of the children that have completed."""
        return [each.output for each in self.children if each.state == "completed"]  # type: ignore[misc]  # an output may be None

    @property
    def failed(self) -> list[MapChild[T_co]]:
        """The children that have failed."""
        return [each for each in self.children if each.state == "failed"]

    @property
    def cancelled(self) -> list[MapChild[T_co]]:
        """The children that were cancelled, or whose runs were deleted."""
        return [each for each in self.children if each.state == "cancelled"]
