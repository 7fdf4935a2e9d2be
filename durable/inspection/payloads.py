"""Payloads as operators may see them: decoded, redacted, within a size limit, and as text of a page.

A hook handles dicts, lists and text. So dataclasses, pydantic models and named tuples become dicts by field, sets and
tuples become lists, and times, decimals and UUIDs become text, at every level, before the hook is called: no `repr` is
made of a value that the hook has not examined. A value of another type, for example bytes, goes to the hook unchanged,
and is hidden afterwards unless the hook has replaced it.

Owns the redaction hook. `DURABLE["REDACT"]` names a function `redact(workflow, field, value)` that returns what may be
shown instead of `value`; `field` is "input", "output", "arguments:<location>", "output:<location>", "state:<location>",
"saved:<location>", "chunk:<location>", "message:<queue>", "response:<queue>", "carried", "error", "traceback", "log",
"status" or "summary". The hook gets plain data; a value without a plain form is hidden unless the hook replaces it. If
the hook fails, nothing is shown. The surfaces check whether a user may see payloads at all.

A download has the same text as a page, so both have the same size.

An error's column holds its type, its message and its traceback as JSON, up to some 60,000 characters, and a list
searches thousands of them. Without a redaction hook the database compares the first `SEARCHED` characters: PostgreSQL
then reads only the beginning of a long column. With a hook, the text that the hook returns for the whole message is
compared: the database must not compare the text that the hook hides, because the answer would disclose it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db.models import Model, Q, QuerySet, TextField, Value
from django.db.models.functions import Coalesce, NullIf, StrIndex, Substr
from django.db.models.lookups import IContains
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from durable import runtime
from durable.codec.classes import is_named_tuple_type, is_pydantic_type
from durable.conf import conf
from durable.core.errors import ErrorInfo, Origin
from durable.core.location import unescape
from durable.core.names.renames import names_of_workflow
from durable.core.places import Place, of_message
from durable.inspection.counting import newest_rows, sample_rows
from durable.inspection.humanize import printable, thousands
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import runs_within
from durable.models import QueueMessage, Run
from durable.models.rows import in_batches, unpack, weight
from durable.models.run import RunQuerySet

DEEPEST: Final = 100  # levels of a payload that are shown
#: Shown instead of a value that is not plain data and that the hook returned unchanged.
NOT_LOOKED_INTO: Final = "(hidden: the redaction hook did not replace it)"
#: Shown instead of a field that its class excludes from its `repr`.
NOT_SHOWN: Final = "(hidden: its class does not show it)"

_CUT = "…"


def to_plain(value: Any, depth: int = 0) -> Any:
    """Convert `value` to dicts with text keys, lists, text, numbers, True, False and None, as far as possible.

    A dict whose keys are not scalars becomes a list of pairs. A value without a plain form is returned unchanged.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value, depth)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return (int if isinstance(value, int) else float)(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if depth >= DEEPEST:
        return _CUT
    fields = _fields(value)
    if fields is not None:
        return {name: to_plain(each, depth + 1) for name, each in fields.items()}
    if isinstance(value, Mapping):
        return _of_mapping(value, depth)
    if isinstance(value, list | tuple):
        return [to_plain(each, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(each, depth + 1) for each in value), key=repr)
    return value


def without_originals(shown: Any, given: Any) -> Any:
    """Return the hook's answer for `given` as plain data. A value without a plain form that the hook kept is hidden."""
    originals = {_identity(each) for each in _leaves(given)}

    def hide(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hide(each) for key, each in value.items()}
        if isinstance(value, list):
            return [hide(each) for each in value]
        return NOT_LOOKED_INTO if not _is_plain(value) and _identity(value) in originals else value

    return hide(to_plain(shown))


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, a pydantic model or a named tuple; None for any other value."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        return {each.name: getattr(value, each.name) if each.repr else NOT_SHOWN for each in fields}
    if is_named_tuple_type(kind):
        return dict(zip(kind._fields, value, strict=False))
    if is_pydantic_type(kind):
        known = {name: field.repr for name, field in kind.model_fields.items()}
        extra = dict.fromkeys(value.model_extra or {}, True)
        return {name: getattr(value, name) if is_shown else NOT_SHOWN for name, is_shown in (known | extra).items()}
    return None


def _of_mapping(value: Mapping[Any, Any], depth: int) -> Any:
    keys = [to_plain(key, depth + 1) for key in value]
    values = [to_plain(each, depth + 1) for each in value.values()]
    if all(_is_scalar(key) for key in keys):
        named = [key if isinstance(key, str) else str(key) for key in keys]
        if len(set(named)) == len(named):
            return dict(zip(named, values, strict=True))
    return [list(pair) for pair in zip(keys, values, strict=True)]


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_plain(value: Any) -> bool:
    return _is_scalar(value) or isinstance(value, dict | list)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values inside plain data that have no plain form."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif not _is_plain(value):
        yield value


def _identity(value: Any) -> tuple[type, Any]:
    """Return a key for comparing values: equal for equal values of one type; the same for all values that cannot be
    hashed.
    """
    try:
        hash(value)
    except Exception:  # noqa: BLE001  # a class of the project may raise anything
        return type(value), None
    return type(value), value


logger = logging.getLogger("durable.inspection")

HIDDEN: Final = "(hidden: the redaction hook failed)"


def redacted(workflow: str, field: str, value: Any) -> Any:
    """Return `value` as plain data, passed through the project's hook; without a hook, `value` itself."""
    if not conf.REDACT:
        return value
    try:
        given = to_plain(value)
        return without_originals(_hook(conf.REDACT)(workflow, field, given), to_plain(value))
    except Exception:  # the project's hook may raise anything
        logger.exception("the redaction hook %s failed for %s of %s", conf.REDACT, field, workflow)
        return HIDDEN


@cache
def _hook(path: str) -> Callable[[str, str, Any], Any]:
    hook: Callable[[str, str, Any], Any] = import_string(path)
    return hook


def payload(workflow: str, field: str, text: str | None, place: Place) -> Any:
    """Decode and redact codec text recorded at `place`, as JSON data; None for None."""
    if text is None:
        return None
    try:
        value = runtime.current().decode(text, place)
    except Exception as error:  # noqa: BLE001  # a deleted class, a lost key, a codec of the project
        # The project's codec may quote in its error the text that it could not read.
        return {"unreadable": str(redacted(workflow, "error", f"{type(error).__name__}: {error}"))}
    return jsonable(redacted(workflow, field, value))


def of_stream(workflow: str, location: str, event: str, value: Any) -> Any:
    """Redact the value of an event of a step's stream (`durable.streams.Chunk`), as JSON data."""
    fields = {"chunk": f"chunk:{location}", "result": f"output:{location}", "failed": "error"}
    return jsonable(redacted(workflow, fields[event], value)) if event in fields else None


def pretty(value: Any, most: int = 20_000) -> str:
    """Return data as indented JSON text, without escapes for characters beyond ASCII; cut after `most` characters."""
    text = printable(json.dumps(value, indent=2, ensure_ascii=False))
    if len(text) <= most:
        return text
    more = _("… and %(number)s characters more; the export has all") % {"number": thousands(len(text) - most)}
    return f"{text[:most]}\n{more}"


def redacted_error(workflow: str, error: ErrorInfo | Origin | None) -> str:
    """Return the error's type and its message, redacted; "" for None."""
    if error is None:
        return ""
    message = redacted(workflow, "error", error.message)
    return f"{error.type}: {message}" if message else error.type


def redacted_traceback(workflow: str, error: ErrorInfo | None) -> str:
    """Return the traceback, redacted; only for users with the permission to see payloads."""
    return "" if error is None or not error.traceback else str(redacted(workflow, "traceback", error.traceback))


def jsonable(value: Any, depth: int = 0) -> Any:
    """Convert `value` to JSON data; values of types that JSON lacks become their `repr`."""
    if value is None or isinstance(value, bool | str) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): jsonable(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [jsonable(each, depth + 1) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted((jsonable(each, depth + 1) for each in value), key=repr)
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # a user's __repr__ may raise anything
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


PART: Final = 100_000  # characters of a part
_LATEST: Final = 4_000  # characters before the end of a part in which a line end is preferred


@dataclass(frozen=True, slots=True)
class Fold:
    """The beginning of a nested object or array, closed by an `END`; `size` counts its items."""

    head: str
    size: int


#: Ends the newest open `Fold`.
END: Final = None


class PayloadText:
    """The indented JSON text of `value`, JSON data, without escapes for characters beyond ASCII."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.text = printable(json.dumps(value, indent=2, ensure_ascii=False))

    @property
    def size(self) -> int:
        """Its length in bytes of UTF-8."""
        return len(self.text) if self.text.isascii() else len(self.text.encode())

    def parts(self, length: int = PART) -> list[tuple[int, int]]:
        """Return the begin and the end of each part of at most `length` characters; a part ends with a line if
        possible.
        """
        found: list[tuple[int, int]] = []
        begin = 0
        while begin < len(self.text):
            end = min(begin + length, len(self.text))
            if end < len(self.text):
                line = self.text.rfind("\n", max(begin, end - _LATEST), end)
                end = line + 1 if line > begin else end
            found.append((begin, end))
            begin = end
        return found

    def find(self, words: str, most: int) -> list[tuple[int, int]]:
        """Return the begin and the end of the first `most` matches of `words`, ignoring case.

        The escapes of JSON for quotes and backslashes match with and without the backslash.
        """
        for each in dict.fromkeys((words, _json(words)[1:-1])):  # one for most words
            if found := list(islice(_spans(each, self.text), most)):
                return found
        return []

    def line_at(self, begin: int, end: int, around: int) -> str:
        """Return the line of a match, at most `around` characters before and after it."""
        first = max(self.text.rfind("\n", 0, begin) + 1, begin - around)
        last = self.text.find("\n", end)
        last = min(len(self.text) if last < 0 else last, end + around)
        return self.text[first:last].strip()


def _spans(words: str, text: str) -> Iterator[tuple[int, int]]:
    return (each.span() for each in re.finditer(re.escape(words), text, re.IGNORECASE)) if words else iter(())


def folded(value: Any) -> Iterator[str | Fold | None]:
    """Yield the lines of the text, with a `Fold` at each nested object or array and `END` after it.

    Lazy: stops when the caller stops.
    """
    yield from _lines(value, "", "", 0)


def _lines(value: Any, head: str, tail: str, depth: int) -> Iterator[str | Fold | None]:
    indent = "  " * depth
    if not isinstance(value, dict | list) or not value:
        yield f"{indent}{head}{_json(value)}{tail}\n"
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    first = f"{indent}{head}{opening}"
    yield Fold(first, len(value)) if depth else f"{first}\n"
    named = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for number, (name, each) in enumerate(named, 1):
        key = "" if name is None else f"{_json(name)}: "
        yield from _lines(each, key, "," if number < len(value) else "", depth + 1)
    yield f"{indent}{closing}{tail}\n"
    if depth:
        yield END


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


PAGE_BYTES: Final = 4 * 1024 * 1024  # of recorded text


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A placeholder for values that were not read; `size` is their length in bytes."""

    size: int

    def __str__(self) -> str:
        text = _("(%(number)s bytes: too large for this page, the export has it)")
        return text % {"number": thousands(self.size)}


def read_within(
    found: QuerySet[Any, Any], *columns: str, most: int = PAGE_BYTES
) -> Mapping[Any, Sequence[Any] | TooLarge]:
    """Return the columns' values by the rows' keys; TooLarge for a row that would bring the total above `most`.

    Two statements; earlier rows of `found` have priority.
    """
    model: type[Model] = found.model
    read: dict[Any, Sequence[Any] | TooLarge] = {}
    fitting: list[tuple[Any, int]] = []
    left = most
    for key, size in found.values_list("pk", weight(*columns)):
        if size <= left:
            left -= size
            fitting.append((key, size))
        else:
            read[key] = TooLarge(size)
    rows = model._default_manager.using(found.db)
    for keys in in_batches(fitting):
        read |= {key: values for key, *values in rows.filter(pk__in=keys).values_list("pk", *columns)}
    return read


_MOST: Final = 1024 * 1024  # bytes of an input that can be edited
_PLAIN: Final = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class EditableInput:
    """The editable input of a run.

    `values` are the editable arguments, `kept` the names of the others, which stay as recorded.
    """

    values: Mapping[str, Any]
    kept: Sequence[str]


def recorded_input(run: Run) -> dict[str, Any] | None:
    """Return the run's decoded input; None if it is too large to edit, or cannot be read. Two statements."""
    found = read_within(Run.objects.using(read_alias()).filter(pk=run.pk), "input", most=_MOST).get(run.pk)
    if found is None or isinstance(found, TooLarge):
        return None
    try:
        given: dict[str, Any] = runtime.current().decode(found[0], Place(run.pk, "input"))
    except Exception:  # noqa: BLE001  # a deleted class, a lost key
        return None
    return given


def shown_arguments(run: Run, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> EditableInput:
    """Return the editable ones of the arguments. `given` is the input that they come from.

    With a redaction hook, an argument can be edited only if the hook leaves it unchanged.
    """
    hidden = _hidden(run, given, arguments) if conf.REDACT else frozenset()
    values = {
        name: list(value) if type(value) is tuple else value
        for name, value in arguments.items()
        if name not in hidden and (is_plain(value) or (type(value) is tuple and all(map(is_plain, value))))
    }
    return EditableInput(values=values, kept=[name for name in arguments if name not in values])


def _hidden(run: Run, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments in which the hook hides something; all names if it changes the input's form."""
    try:
        plain, shown = to_plain(given), redacted(run.workflow, "input", given)
        if plain == shown:
            return frozenset()
        rest = list(zip(plain["args"], shown["args"], strict=True))
        named = {name: plain["kwargs"][name] == shown["kwargs"][name] for name in plain["kwargs"]}
    except Exception:  # noqa: BLE001  # the hook's result has another form
        return frozenset(arguments)
    positional = [name for name in arguments if name not in named]
    if len(positional) != len(rest):  # *args or **kwargs
        return frozenset(arguments)
    same = {name: before == after for name, (before, after) in zip(positional, rest, strict=True)} | named
    return frozenset(name for name in arguments if not same.get(name, False))


def is_plain(value: Any) -> bool:
    """Return whether the value survives a round trip through JSON unchanged."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in _PLAIN and (type(value) is not float or value - value == 0)


_RUNS: Final = 20  # the newest runs of the workflow
_EACH: Final = 5  # their newest messages to examine
_MOST_MESSAGES: Final = 64 * 1024  # bytes of bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerMessage:
    """A message that was sent to this run, or to another run of its workflow. `body` is JSON text."""

    key: str
    queue: str
    run_id: str
    sent_at: datetime
    body: str


def former_messages(run: Run, queues: Iterable[str], within: RunQuerySet | None) -> list[FormerMessage]:
    """Return the newest message of each of these queues whose body fits into JSON and is not redacted.

    Searches this run and the newest runs of its workflow; five statements. Show it to users with `view_payload`.
    """
    wanted = list(dict.fromkeys(queues))
    every = runs_within(within).order_by("-created_at", "-id")
    others = [every.filter(workflow=each) for each in names_of_workflow(run.workflow)]
    ids = dict.fromkeys([run.pk, *(unpack(each) for _, each in newest_rows(others, ["created_at", "id"], _RUNS))])
    messages = QueueMessage.objects.using(read_alias())
    samples = sample_rows([messages.filter(run=each).order_by("-order") for each in ids], ["id", "queue"], _EACH)
    newest: dict[str, str] = {}
    for sample in samples:
        for key, queue in sample:
            newest.setdefault(unescape(queue), key)
    chosen = messages.filter(pk__in=[newest[each] for each in wanted if each in newest])
    bodies = read_within(chosen, "body", most=_MOST_MESSAGES)
    found: dict[str, FormerMessage | None] = {}
    for each in chosen.defer("body", "response"):
        read = bodies.get(each.pk)
        if read is not None and not isinstance(read, TooLarge):
            found[each.pk] = _shown(run.workflow, each, read[0])
    shown = [found.get(newest[each]) for each in wanted if each in newest]
    return [each for each in shown if each is not None]


def _shown(workflow: str, message: QueueMessage, text: str) -> FormerMessage | None:
    try:
        value = runtime.current().decode(text, of_message(message.run_id, "message", message.pk, message.queue))
    except Exception:  # noqa: BLE001  # a deleted class, a lost key
        return None
    if not is_plain(value) or redacted(workflow, f"message:{message.queue}", value) != value:
        return None
    body = json.dumps(value, indent=2, ensure_ascii=False)
    return FormerMessage(key=message.pk, queue=message.queue, run_id=message.run_id, sent_at=message.sent_at, body=body)


SEARCHED: Final = 2_000  # characters of an error's column
LOOKED_THROUGH: Final = 500  # runs whose errors one page passes to the redaction hook

_BEGINS: Final = '{"type": "'
_MESSAGE_ENDS: Final = '", "traceback": '  # inside a message the quote is escaped


def contains(text: str) -> Q:
    """Return a condition for errors whose type or message contains `text`.

    The first `SEARCHED` characters are compared, ignoring case.
    """
    beginning = Substr("error", len(_BEGINS) + 1, SEARCHED, output_field=TextField())
    end = Coalesce(NullIf(StrIndex(beginning, _text(_MESSAGE_ENDS)), Value(0)), Value(SEARCHED))
    part = Substr(beginning, 1, end, output_field=TextField())
    # The column is ASCII JSON, so the text is compared in its JSON form.
    return Q(error__isnull=False) & Q(IContains(part, json.dumps(text)[1:-1]))


def shown_with(text: str, runs: RunQuerySet, most: int) -> tuple[Sequence[Run], Run | None]:
    """Return up to `most` of the runs whose shown error contains `text`, in order, and where the search stopped.

    The second value is the last examined run, None if all were. It depends only on which runs have errors and which are
    returned, never on text that the hook hides. Two statements.
    """
    end = StrIndex("error", _text(_MESSAGE_ENDS))
    beginning = Substr("error", 1, end, output_field=TextField())
    found = runs.filter(error__isnull=False).annotate(text=beginning)
    rows = list(found.only("id", "created_at", "finished_at", "wake_at", "workflow")[:LOOKED_THROUGH])
    matching = _matching(text, rows)[:most]
    if len(matching) == most:
        last: Run | None = matching[-1]
    else:
        last = rows[-1] if len(rows) == LOOKED_THROUGH else None
    whole = runs.model._default_manager.using(runs.db).defer("input", "output").in_bulk([run.pk for run in matching])
    return [whole[run.pk] for run in matching if run.pk in whole], last


def _matching(text: str, rows: Iterable[Any]) -> list[Run]:
    wanted = text.casefold()
    return [row for row in rows if wanted in redacted_error(row.workflow, _error(row.text)).casefold()]


def _error(beginning: str) -> ErrorInfo | None:
    """Return the type and the message of a column's text that was cut after the message's quote."""
    try:
        return ErrorInfo(**json.loads(beginning + "}"))
    except (ValueError, TypeError):
        return None


def _text(value: str) -> Value:
    return Value(value, output_field=TextField())
