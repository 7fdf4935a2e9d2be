"""The base of durable's models, their fields, and reads of rows with large columns.

Fields hold any Python text, errors and JSON in ordinary text columns.

PostgreSQL text cannot hold NUL, no database driver takes lone surrogates, and both occur in what users name and raise.
These fields escape them when writing and restore them when reading; other text is stored unchanged. They must not use
the database's own JSON types, which lose NUL, order and number forms.

Read rows with large columns in batches of a bounded size: first the lengths of the columns, then some rows at a
time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from enum import StrEnum
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Func, IntegerField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.db.models.lookups import In
from django.db.models.sql.compiler import SQLCompiler

from durable.core.clock import EARLIEST, LATEST
from durable.core.errors import ErrorInfo
from durable.core.location import escape, unescape
from durable.core.summary import Summary

R = TypeVar("R")


class Row(models.Model):
    """A row of one of durable's tables.

    Django asks the project's routers where to read a deferred column. A router that sends reads to a replica would read
    it there, where the row may be missing or older.
    """

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.pk)

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Any] | None = None,
    ) -> None:
        """Read the row, or these columns, again: from the database where it was read, unless another one is named."""
        if from_queryset is None:
            using = using or self._state.db
        super().refresh_from_db(using, fields, from_queryset)


class Recorded(Generic[R]):
    """A property of a row: the engine's record, whose fields are columns of the same names, but for those given.

    `others` make the values of fields that are not, or not in this form.
    """

    def __init__(self, kind: type[R], /, **others: Callable[[Any], Any]) -> None:
        self._kind = kind
        names = [each.name for each in fields(kind)]  # type: ignore[arg-type]  # a dataclass
        self._values = [(name, others.get(name) or attrgetter(name)) for name in names]

    @overload
    def __get__(self, row: None, owner: type) -> Self: ...
    @overload
    def __get__(self, row: models.Model, owner: type | None = None) -> R: ...
    def __get__(self, row: models.Model | None, owner: type | None = None) -> Self | R:
        return self if row is None else self._kind(**{name: value(row) for name, value in self._values})


_FEW: Final = 1_000  # names that `Among` looks up one by one

_Set = TypeVar("_Set", contravariant=True)
_Get = TypeVar("_Get", covariant=True)

if TYPE_CHECKING:

    class _CharField(models.CharField[_Set, _Get]): ...

    class _TextField(models.TextField[_Set, _Get]): ...

    class _DateTimeField(models.DateTimeField[_Set, _Get]): ...

else:  # Django's own fields are generic only in their stubs

    class _CharField(models.CharField):
        def __class_getitem__(cls, _types):
            return cls

    class _TextField(models.TextField):
        def __class_getitem__(cls, _types):
            return cls

    class _DateTimeField(models.DateTimeField):
        def __class_getitem__(cls, _types):
            return cls


_MARK = "\x1a"  # the control character "substitute" introduces a character that cannot be stored as itself
_UNSAFE = re.compile("[\x00\x1a\ud800-\udfff]")
_PACKED = re.compile("\x1a([0-9a-f]{4})")


def choices(words: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the members of `words` as choices of a field."""
    return [(word.value, word.value.replace("_", " ")) for word in words]


def pack(text: str) -> str:
    """Return `text` in a form that every database can hold; usually unchanged."""
    if text.isascii() and "\x00" not in text and _MARK not in text:  # the common case
        return str.__str__(text)  # of a class derived from str, the text itself
    return _UNSAFE.sub(_packed, text)


def _packed(match: re.Match[str]) -> str:
    return f"{_MARK}{ord(match.group()):04x}"


def unpack(text: str) -> str:
    if _MARK not in text:
        return text
    return _PACKED.sub(lambda match: chr(int(match.group(1), 16)), text)


def dump_json(value: Any) -> str:
    """Return JSON-native data as ASCII JSON text."""
    if value == {}:  # the usual case
        return "{}"
    return json.dumps(value, separators=(",", ":"))


def load_json(text: str) -> Any:
    if text == "{}":  # the two usual cases
        return {}
    return [] if text == "[]" else json.loads(text)


def dump_error(error: ErrorInfo | None) -> str | None:
    if error is None:
        return None
    return json.dumps(error.data)


def load_error(text: str | None) -> ErrorInfo | None:
    return None if text is None else ErrorInfo.read(json.loads(text))


def dump_summary(summary: str) -> str:
    """Return the stored form of a summary; a text without data is stored as it is."""
    return pack(summary.stored if isinstance(summary, Summary) else summary)


def load_summary(text: str) -> str:
    return Summary.load(unpack(text)) if text else ""


class MomentField(_DateTimeField[_Set, _Get]):
    """A time chosen by a person. Times outside of Python's range are read as LATEST or EARLIEST.

    SQL can write such times, and a list with one unreadable row would show none. Times set by the engine are ordinary
    fields, because lists are sorted by them along indexes.
    """

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Return the expression that reads the column `sql`. A subquery is read unchanged: it would otherwise be
        executed three times.
        """
        vendor = compiler.connection.vendor
        if vendor not in _UNREADABLE or "SELECT" in sql:
            return sql, params
        clauses = _UNREADABLE[vendor]
        cases = " ".join(f"WHEN {sql}{condition} THEN {value}" for condition, value in clauses)
        return f"CASE {cases} ELSE {sql} END", (*params, *params * len(clauses))

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs  # the same column


#: By database: the conditions for times outside of Python's range, and the value read instead. NULL meets none.
_UNREADABLE: Final = {
    "postgresql": [
        (f" > '{LATEST}'", f"timestamptz '{LATEST}'"),
        (f" < '{EARLIEST}'", f"timestamptz '{EARLIEST}'"),
    ],
    "sqlite": [
        (" NOT GLOB '[0-9][0-9][0-9][0-9]-*'", f"'{LATEST.replace(tzinfo=None)}'"),
        (f" > '{LATEST.replace(tzinfo=None)}'", f"'{LATEST.replace(tzinfo=None)}'"),
    ],
}


class _Converted:
    """A field whose column has its values in another form: `dump` converts one of `types`, and `load` what was read."""

    types: type | tuple[type, ...] = str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]

    def get_prep_value(self, value: Any) -> Any:
        return self.dump(value) if isinstance(value, self.types) else super().get_prep_value(value)  # type: ignore[misc]  # the field's

    def from_db_value(self, value: Any, *_: Any) -> Any:
        return None if value is None else self.load(value)


class SafeTextField(_Converted, _TextField[_Set, _Get]):
    """Text of any length and content."""

    dump: Callable[[Any], Any] = staticmethod(pack)
    load: Callable[[Any], Any] = staticmethod(unpack)


class SummaryField(SafeTextField[_Set, _Get]):
    """A `durable.core.summary.Summary`: the attribute is its sentence, and the column has its data as JSON text."""

    dump, load = staticmethod(dump_summary), staticmethod(load_summary)

    def value_to_string(self, obj: models.Model) -> str:
        summary: Any = self.value_from_object(obj)
        return dump_summary(summary)

    def to_python(self, value: Any) -> Any:
        return load_summary(value) if isinstance(value, str) else value


class NameField(_Converted, _CharField[_Set, _Get]):
    """A short text of any content, compared character by character: case and accents count, in every database.

    PostgreSQL sorts it by code point, so that prefix searches use the ordinary index; the type's long name keeps Django
    from adding a second index for that.
    """

    dump: Callable[[Any], Any] = staticmethod(pack)
    load: Callable[[Any], Any] = staticmethod(unpack)

    def deconstruct(self) -> Any:
        """Leave the choices out of migrations: the database does not know them."""
        *names, given = super().deconstruct()
        return *names, {name: value for name, value in given.items() if name != "choices"}

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        if connection.vendor == "postgresql":
            return f"character varying({self.max_length})"
        return super().db_type(connection)

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        return {**super().db_parameters(connection), "collation": "C" if connection.vendor == "postgresql" else None}


@NameField.register_lookup
class Among(In):
    """`name__among=[...]`: what `name__in` finds, planned for names that few rows have each.

    For a list of literals PostgreSQL adds up what its sample of the column makes of each, which is far too much where
    one name is common and all others are rare: it then reads a table of millions of runs for some hundred of them. Of
    more than `_FEW` names that may be right.
    """

    lookup_name = "among"

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """Return the comparison with an array that the planner does not look into."""
        if len(self.rhs) > _FEW:
            sql, given = self.as_sql(compiler, connection)
            return sql, list(given)
        lhs, params = self.process_lhs(compiler, connection)
        return f"{lhs} = ANY(ARRAY(SELECT unnest(%s::text[])))", [*params, list(self.rhs)]


class QueueField(NameField[_Set, _Get]):
    """The name of a message queue, stored in the same form as in a run's `waiting_for`."""

    dump, load = staticmethod(escape), staticmethod(unescape)

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(value) if value else value


class JSONTextField(_Converted, _TextField[_Set, _Get]):
    """The engine's own JSON-native data, as ASCII JSON text."""

    types, dump, load = object, staticmethod(dump_json), staticmethod(load_json)

    def value_to_string(self, obj: models.Model) -> str:
        return dump_json(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        return load_json(value) if isinstance(value, str) else value


class ErrorField(_Converted, _TextField[_Set, _Get]):
    """An `ErrorInfo` or None, as ASCII JSON text."""

    types, dump, load = (ErrorInfo, NoneType), staticmethod(dump_error), staticmethod(load_error)

    def value_to_string(self, obj: models.Model) -> str:
        error: Any = self.value_from_object(obj)
        return dump_error(error) or ""

    def to_python(self, value: Any) -> Any:
        return load_error(value or None) if not isinstance(value, ErrorInfo) else value


BATCH_BYTES: Final = 4 * 1024 * 1024
_MOST: Final = 1_000  # rows of one batch


class ByteLength(Func):
    """The length of a text column in bytes, as it is stored; PostgreSQL tells it without unpacking the column."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Use another function: older versions of SQLite lack this one."""
        return self.as_sql(compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))", **context)


def weight(*columns: str) -> Combinable:
    """Return an expression: the total length of the columns of a row, 0 for NULL."""
    total: Combinable = Value(0)
    for each in columns:
        total = total + Coalesce(ByteLength(F(each)), 0)
    return total


def in_batches(weighed: Iterable[tuple[Any, int]], most_bytes: int = BATCH_BYTES) -> Iterator[list[Any]]:
    """Yield the keys in order, in batches whose rows have at most `most_bytes` together; a larger row is a batch of its
    own.
    """
    batch: list[Any] = []
    total = 0
    for key, weight in weighed:
        if batch and (total + weight > most_bytes or len(batch) >= _MOST):
            yield batch
            batch, total = [], 0
        batch.append(key)
        total += weight
    if batch:
        yield batch
