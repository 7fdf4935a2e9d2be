"""The migration operations that say where recorded classes and rollback handlers have moved.

Owns the checks before a move is recorded. Rewrites no row: `durable.core.names.recorded_names` says what the fact means
to a reader, docs/design/history-migrations.md why that is enough. Migration files import this module through
`durable.migrations`: what needs models is imported when an operation is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from durable.codec.classes import is_dataclass_type, is_enum_type, is_named_tuple_type, is_pydantic_type
from durable.core import clock
from durable.core.names.recorded_names import Move, Moves, recorded_name
from durable.renames.operations import OfRecords, all_migrations, moves_of


class _Moved(OfRecords):
    __module__ = "durable.migrations"  # from where migration files that Django writes import it

    table = "durable_movedname"
    #: The kind of the moved thing, in words.
    noun = ""

    def __init__(self, old: str, new: str, *, elidable: bool = False) -> None:
        super().__init__(old, new, elidable=elidable)
        self.old = old
        self.new = new
        self.move = Move(recorded_name(old), recorded_name(new))
        one, other = self.move
        if one == other:
            raise ValueError(f'"{old}" is where it is already')
        if one.startswith(f"{other}.") or other.startswith(f"{one}."):
            raise ValueError(
                f'"{old}" and "{new}" are nested in each other: nothing moves into itself, or takes the place of both'
            )

    def apply_to(self, alias: str) -> None:
        """Record that both names stand for one class or function."""
        from durable.models import MovedName, Run
        from durable.models.renames import recorded_moves
        from durable.renames.rewriting import RenameRefused

        known = Moves(recorded_moves(alias))
        if known.newest(self.move.old) == self.move.new:
            return  # recorded before
        try:
            known.check(self.move)
            if Run.objects.using(alias).exists():  # else neither name exists, and the code may be far ahead
                self._check_code(Moves(moves_of(all_migrations())))
        except ValueError as error:
            raise RenameRefused(f"{error}. Nothing was written.") from error
        MovedName.objects.using(alias).create(old=self.move.old, new=self.move.new, recorded_at=clock.now())

    def take_back(self, alias: str) -> None:
        """Keep the record, because runs may have both names and the code reads both. Delete it if there are no runs."""
        from durable.models import MovedName, Run

        if not Run.objects.using(alias).exists():
            MovedName.objects.using(alias).filter(old=self.move.old, new=self.move.new).delete()

    def _check_code(self, moves: Moves) -> None:
        """Raise ValueError unless the code has the class or function at its newest name, and nothing else at its old
        one.
        """
        now = moves.newest(self.move.new)
        found = _imported(now)
        if (problem := self._problem(found)) is not None:
            raise ValueError(
                f"{self.old} cannot be moved: {now} {problem}. Migrate with the code that has it there; for something nested in "
                "a class, write a colon behind the module, as in shop.orders:Order.Line; if it is gone for good, take this "
                "operation out of the migration"
            )
        if now == self.move.old:
            return  # it has moved back since
        before = _imported(self.move.old)
        if before is not found and self._takes_the_place(before):
            raise ValueError(
                f"{self.old} cannot be moved: the code has another {self.noun} of that name, and what is recorded under it would "
                "be read as of that one. Give the other one a name that no record has"
            )

    def _problem(self, found: object) -> str | None:
        raise NotImplementedError

    def _takes_the_place(self, found: object) -> bool:
        raise NotImplementedError

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Say that the recorded {self.noun} {self.old} is {self.new}"


class MoveClass(_Moved):
    """Declare that a recorded class has moved: `MoveClass("shop.models.Order", "shop.orders.Order")`.

    The class is one that values or errors of recorded runs have: a dataclass, an enum, a named tuple, a pydantic model,
    or an error that steps raise. Its nested classes move with it. For a class that is nested itself, write a colon
    behind the module: `MoveClass("shop.models:Order.Line", "shop.orders:Line")`.

    From then on both paths are of one class: each process reads records of both as the class that its code has, so that
    workers with the old code and with the new one may run beside each other. No record is rewritten. Migrate before the
    new code runs. The migration depends on ("durable", "0002_routines"). It can be reversed.

    Raises TypeError and ValueError for invalid paths; `RenameRefused` when it is applied to a database with runs, if
    the code has no such class, or another one that is recorded under the old path.
    """

    __module__ = "durable.migrations"

    noun = "class"
    fragment = "move_class"

    def _problem(self, found: object) -> str | None:
        if found is None:
            return "cannot be imported"
        return None if isinstance(found, type) else "is not a class"

    def _takes_the_place(self, found: object) -> bool:
        kinds: tuple[Callable[[type], bool], ...] = (
            is_dataclass_type,
            is_enum_type,
            is_named_tuple_type,
            is_pydantic_type,
            lambda cls: issubclass(cls, Exception),
        )
        return isinstance(found, type) and any(is_kind(found) for is_kind in kinds)


class MoveHandler(_Moved):
    """Declare that a rollback handler has moved: `MoveHandler("shop.models.refund", "shop.refunds.refund")`.

    Steps recorded with `shop.models.refund` are undone by `shop.refunds.refund`, or by the first one if the code still
    has it. Otherwise as `MoveClass`.
    """

    __module__ = "durable.migrations"

    noun = "rollback handler"
    fragment = "move_handler"

    def _problem(self, found: object) -> str | None:
        if found is None:
            return "cannot be imported"
        return None if callable(found) and not isinstance(found, type) else "is not a function"

    def _takes_the_place(self, found: object) -> bool:
        return callable(found)


def _imported(name: str) -> object:
    """Return the object that the project's code has under the name, or None."""
    module, _, qualname = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception:  # noqa: BLE001  # the module's own code runs here and may raise anything
        return None
    return found
