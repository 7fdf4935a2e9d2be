"""Code of a project whose classes move: versions of it as modules, and moves applied as a migration applies them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from django.db import connection
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from durable.core.names import recorded_names
from durable.models.renames import recorded_moves

PACKAGE = "moving_shop"

#: One class of each kind that is recorded, one in another, an error and a rollback handler.
SHAPES = """
import dataclasses, enum, typing
from decimal import Decimal
import pydantic
from durable import CriticalError

class Size(enum.Enum):
    BIG = "big"

class Flags(enum.Flag):
    A = 1
    B = 2

class Point(typing.NamedTuple):
    x: int

class Model(pydantic.BaseModel):
    size: Size

@dataclasses.dataclass(frozen=True)
class Order:
    @dataclasses.dataclass(frozen=True)
    class Line:
        sku: str

    number: int
    lines: tuple = ()

class DeclinedError(CriticalError):
    pass

UNDONE = []

def refund(rollback, output):
    UNDONE.append(output)
"""


@contextmanager
def modules(**sources: str) -> Iterator[dict[str, ModuleType]]:
    """Have the modules of the package, and no others, in this block."""
    saved = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == PACKAGE}
    made = {}
    try:
        sys.modules[PACKAGE] = ModuleType(PACKAGE)
        for name, source in sources.items():
            module = made[name] = sys.modules[f"{PACKAGE}.{name}"] = ModuleType(f"{PACKAGE}.{name}")
            setattr(sys.modules[PACKAGE], name, module)
            exec(compile(source, name, "exec"), module.__dict__)  # the code of a version, of this file
        yield made
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.modules.update(saved)


def apply(operation: Operation, *, is_known: bool = True) -> None:
    """Apply the operation. With `is_known`, this process knows of it."""
    operation.database_forwards("shop", connection.SchemaEditorClass(connection), ProjectState(), ProjectState())
    if is_known:
        learn()


def unapply(operation: Operation) -> None:
    """Reverse the operation."""
    operation.database_backwards("shop", connection.SchemaEditorClass(connection), ProjectState(), ProjectState())


def learn() -> None:
    """Have this process know what the database has."""
    recorded_names.put_in_force(recorded_moves(connection.alias))
