"""Definitions of functions and triggers of the database, read from the statements that create them.

The files `*.sql` beside this one have the statements, with what each does: in plain SQL, for editors and for psql.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

_STATEMENT: Final = re.compile(r"^CREATE (?:FUNCTION .*?^END \$\$|TRIGGER [^;]*);$", re.DOTALL | re.MULTILINE)
_FUNCTION: Final = re.compile(
    r"CREATE FUNCTION (?P<name>\w+)\((?P<parameters>[^)]*)\)(?P<result>.*?)LANGUAGE plpgsql(?P<settings>.*?)AS \$\$(?P<body>.*)\$\$",
    re.DOTALL,
)
_COLUMNS: Final = re.compile(r"RETURNS TABLE \((?P<columns>[^)]*)\)")
_SETTING: Final = re.compile(r"SET (\w+) TO (\w+)")
_TRIGGER: Final = re.compile(r"CREATE TRIGGER (\w+) .*? ON (\w+) ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function. `signature` has the types of its parameters, as to_regprocedure takes it.

    `names` are those of its parameters, then those of its result's columns.
    """

    name: str
    statement: str
    signature: str
    names: tuple[str, ...]
    body: str
    settings: frozenset[str]  # each as "name=value"

    @classmethod
    def of(cls, statement: str) -> Self:
        """Return the function that `CREATE FUNCTION ... LANGUAGE plpgsql ... AS $$ ... $$` creates."""
        found = _FUNCTION.search(statement)
        assert found is not None, statement
        parameters = [each.split() for each in found["parameters"].split(",") if each.strip()]
        columns = _COLUMNS.search(found["result"])
        returned = [each.split() for each in columns["columns"].split(",")] if columns else []
        types = ", ".join(each[-1] for each in parameters if each[0] != "OUT")
        return cls(
            name=found["name"],
            statement=statement.strip(),
            signature=f"{found['name']}({types})",
            names=(*(each[-2] for each in parameters), *(each[0] for each in returned)),
            body=found["body"],
            settings=frozenset(f"{name}={value}" for name, value in _SETTING.findall(found["settings"])),
        )

    @property
    def replacing(self) -> str:
        """Return the statement that creates it in the place of one that has the same signature."""
        return self.statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)

    @property
    def dropping(self) -> str:
        return f"DROP FUNCTION IF EXISTS {self.signature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger. `name` is "trigger on table"."""

    name: str
    trigger: str
    table: str
    statement: str

    @classmethod
    def of(cls, statement: str) -> Self:
        """Return the trigger that `CREATE TRIGGER ... ON ...` creates."""
        found = _TRIGGER.search(statement)
        assert found is not None, statement
        trigger, table = found.groups()
        return cls(name=f"{trigger} on {table}", trigger=trigger, table=table, statement=statement.strip())

    @property
    def dropping(self) -> str:
        return f"DROP TRIGGER IF EXISTS {self.trigger} ON {self.table}"


Routine: TypeAlias = Function | Trigger


def read(file: str) -> tuple[Routine, ...]:
    """Return the functions and triggers of a file in this folder ("slots" for `slots.sql`), in their order."""
    text = Path(__file__).with_name(f"{file}.sql").read_text(encoding="utf-8")
    statements = (each.removesuffix(";") for each in _STATEMENT.findall(text))
    return tuple(Trigger.of(each) if each.startswith("CREATE TRIGGER") else Function.of(each) for each in statements)
