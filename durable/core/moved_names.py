"""Moved classes and functions: names, "module:qualname", that stand for one thing, because a migration says so.

Owns which other names a recorded name has. They are asked for only where a name leads to nothing in this process, so
code goes before facts: what a process has under a name is what the name means to it. A process knows the moves that
were put in force in it; it looks again, with the function of `look_with`, for a name that these do not explain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

_MOST_CHARACTERS: Final = 500


class Move(NamedTuple):
    """A class or function that was at `old` and is at `new`, with all that is nested in it."""

    old: str
    new: str


class Moves:
    """The moves of recorded names, the oldest first."""

    __slots__ = ("_moves",)

    def __init__(self, moves: Iterable[Move] = ()) -> None:
        self._moves = tuple(moves)

    def newest(self, name: str) -> str:
        """Return the newest name of what `name` names."""
        for each in self._moves:
            name = _below(name, each.old, each.new)
        return name

    def others(self, name: str) -> tuple[str, ...]:
        """Return the other names of what `name` names, the newest first."""
        found = {(at := self.newest(name)): None}
        for each in reversed(self._moves):
            at = _below(at, each.new, each.old)
            found[at] = None
        found.pop(name, None)
        return tuple(found)

    def check(self, move: Move) -> None:
        """Raise ValueError for a move that does not go on from the newest name, or to a name of something else."""
        now = self.newest(move.old)
        if now != move.old:
            raise ValueError(f"{move.old} has moved to {now} already: move it on from there")
        if move.new in self.others(move.old):
            return  # it moves back
        if move.new in (name for each in self._moves for name in each):
            raise ValueError(
                f"{move.new} is a name of something else that has moved: after this, records of the two could not be told apart"
            )


def _below(name: str, old: str, new: str) -> str:
    """Return the name, or that of something nested, with `new` for `old`; others unchanged."""
    return new + name[len(old) :] if name == old or name.startswith(f"{old}.") else name


def recorded_name(path: str) -> str:
    """Return the name that records have of "shop.orders.Order", or of "shop.orders:Order.Line".

    Raises TypeError or ValueError for what is no such path.
    """
    if not isinstance(path, str):
        raise TypeError(f'a class or function is given by its path, such as "shop.orders.Order", not {path!r}')
    module, _, qualname = path.partition(":") if ":" in path else path.rpartition(".")
    parts = (*module.split("."), *qualname.split("."))
    if not all(part.isidentifier() for part in parts):
        raise ValueError(
            f"{ascii(path)[:200]} is no path of a class or function: write it as shop.orders.Order, or with a colon behind the "
            "module, as shop.orders:Order.Line, for what is nested in a class"
        )
    if "__main__" in parts:
        raise ValueError(f"{path[:200]} is a part of a program, and records name what can be imported")
    if len(path) > _MOST_CHARACTERS:
        raise ValueError(f"a path has at most {_MOST_CHARACTERS} characters")
    return f"{module}:{qualname}"


class _InForce(NamedTuple):
    moves: Moves
    #: Whether the process looks for more.
    looks: bool


_known = _InForce(Moves(), looks=True)
_look: Callable[[], object] | None = None


def put_in_force(moves: Iterable[Move]) -> None:
    """Replace the moves that are in force in this process by these, the oldest first."""
    global _known  # one value, replaced whole, that threads read without a lock
    if _known.looks:
        _known = _InForce(Moves(moves), looks=True)


@contextmanager
def in_force(moves: Iterable[Move]) -> Iterator[None]:
    """Take these moves as in force within the block, and look for no others."""
    global _known  # see `put_in_force`
    before = _known
    _known = _InForce(Moves(moves), looks=False)
    try:
        yield
    finally:
        _known = before


def look_with(look: Callable[[], object]) -> None:
    """Register `look` in this process, which puts in force what is recorded now, before it gives up a name."""
    global _look  # set once, when Django is set up
    _look = look


def other_names(name: str) -> Iterator[str]:
    """Yield the other names of what a record names, the newest first.

    Called for a name that leads to nothing in this process.
    """
    if "<" in name:  # of a function's inside, which no process can import
        return
    known = _known.moves.others(name)
    yield from known
    if _look is not None and _known.looks:
        _look()
        yield from (each for each in _known.moves.others(name) if each not in known)
