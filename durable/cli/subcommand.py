"""Shared parts of subcommands: their declaration, run and actor, arguments, and the parsing of values."""

from __future__ import annotations

import getpass
import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from durable.cli.output import FORMATS, Exit, Output
from durable.codec.given_json import NumberTooLargeError, read_given
from durable.conf import conf
from durable.core.clock import to_utc
from durable.core.duration import parse_duration
from durable.core.numbers import MOST_WHOLE, read_whole
from durable.core.registry import UnknownWorkflowError
from durable.inspection.limits import refusal_of
from durable.inspection.run_facts import read_tag
from durable.listings.listing import MOST_LISTED, Filter
from durable.models import Run
from durable.operations.audit import REFUSALS, Actor, acting_as
from durable.operations.bulk import Selection
from durable.operations.options import Deadline, Decimal, Flag, Json, Length, Number, OneOf, Option, Until
from durable.operations.queries import tick_without_run

#: Adds an argument, or several, to the parser of a subcommand.
Argument: TypeAlias = Callable[[ArgumentParser], object]
Perform: TypeAlias = Callable[[Namespace, Output], int]


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand of `manage.py durable`.

    `help` is a sentence. `run` performs the subcommand and returns the exit status. The help lists the `arguments` in
    their order. `alias` is a second name, or "".
    """

    name: str
    help: str
    run: Perform
    arguments: Sequence[Argument]
    alias: str = ""

    def configure(self, parser: ArgumentParser) -> None:
        for each in self.arguments:
            each(parser)


def subcommand(name: str, help: str, *arguments: Argument) -> Callable[[Perform], Subcommand]:
    """Make a subcommand of the function that performs it."""
    return lambda run: Subcommand(name, help, run, arguments)


class RefusedError(Exception):
    """A verb was refused. Printed, with the status `Exit.REFUSED`."""


@contextmanager
def refusable() -> Iterator[None]:
    """Raise RefusedError if a verb in the block is refused."""
    try:
        yield
    except (*REFUSALS, UnknownWorkflowError) as error:
        raise RefusedError(str(error)) from error


@contextmanager
def acting(options: Namespace) -> Iterator[None]:
    """Act in the block as the options of `ACTING` and `REVISION` say. Raises RefusedError, CommandError."""
    actor, expected = shell_actor(options.user), getattr(options, "revision", None)
    with refusable(), acting_as(actor, reason=options.reason, expected=expected):
        yield


def found_run(run_id: str) -> Run:
    """Return the run's row. Raises CommandError if there is no such run."""
    run = Run.objects.using(conf.DATABASE).with_side_rows().filter(pk=run_id).first()
    if run is None:
        raise CommandError(no_run(run_id), returncode=Exit.REFUSED)
    return run


def no_run(run_id: str) -> str:
    """Say that there is no such run, and why a rate or a schedule has started none, if that is known."""
    why = refusal_of(run_id)
    if not why and (tick := tick_without_run(run_id)):
        why = f"its schedule has started none for that moment: {tick}"
    return f'there is no run "{run_id}"' + (f": {why}" if why else "")


# -- the actor


def shell_actor(user_name: str | None, argument: str = "--as") -> Actor:
    """Return the actor. With a user, that user's permissions apply; without one, every action is allowed.

    Raises CommandError, naming the `argument`, for a user that does not exist or is not active.
    """
    label = _system_name()
    if user_name is None:
        return Actor("cli", label=label)
    users = get_user_model()._default_manager
    try:
        user = users.get_by_natural_key(user_name)
    except ObjectDoesNotExist:
        raise CommandError(f"{argument}: there is no user {user_name!r}", returncode=Exit.USAGE) from None
    if not user.is_active:
        raise CommandError(f"{argument}: the user {user_name!r} is not active", returncode=Exit.USAGE)
    return Actor("cli", user=user, label=label)


def _system_name() -> str:
    """Return the operating system's name for its user; the number if there is no name, as in many containers.

    The environment is not used: LOGNAME may be set to any name.
    """
    if not hasattr(os, "getuid"):  # Windows
        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


# -- arguments

_LONGEST: Final = 10_000  # characters of a line with an id, which has 200 at most
JSON_HELP: Final = "JSON; what does not look like JSON is taken as text, - is read from standard input"


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument; `names` and `options` are those of `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names, **options)


def exclusive(*arguments: Argument, required: bool = False) -> Argument:
    """Return arguments of which one can be given."""

    def add(parser: ArgumentParser) -> None:
        group: Any = parser.add_mutually_exclusive_group(required=required)
        for each in arguments:
            each(group)

    return add


def formats(*choices: str, also: str = "") -> Argument:
    """Return `-o`, whose default is the first of the formats. `also` is another name of the option."""
    names = ("-o", "--output", *([also] if also else []))
    found = choices or FORMATS
    return argument(*names, choices=found, default=found[0], metavar="FORMAT", help="what to print")


def run_ids(*, may_be_none: bool = False) -> Argument:
    what = "run ids; - reads more of them from standard input, one a line"
    return argument("ids", nargs="*" if may_be_none else "+", metavar="ID", help=what)


#: The id of a run.
RUN: Final = argument("id", metavar="ID")


def filters(*given: Filter) -> Argument:
    def add(parser: ArgumentParser) -> None:
        for each in given:
            _add_filter(parser, each)

    return add


def _add_filter(parser: ArgumentParser, each: Filter) -> None:
    names = [*filter(None, [each.short]), f"--{each.name.replace('_', '-')}"]
    said: dict[str, Any] = {"dest": each.name, "help": each.shell_help}
    if each.kind is bool:
        parser.add_argument(*names, action="store_true", **said)
        return
    said |= {"metavar": each.metavar or each.name.upper(), "default": each.default}
    if each.kind is datetime:
        said |= {"type": moment, "metavar": "MOMENT"}
    if each.kind is tuple:
        said |= {"type": _tag}
    if each.choices:
        said |= {"choices": each.choices}
    if each.several or each.kind is tuple:
        said |= {"action": "append", "default": []}
    parser.add_argument(*names, **said)


def _tag(text: str) -> tuple[str, str]:
    try:
        return read_tag(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def tags(meaning: str) -> Argument:
    """Return an option for tags, which may be given several times; `meaning` is its help."""
    return argument("--tag", action="append", default=[], type=_tag, metavar="NAME=VALUE", help=meaning)


def option(given: Option, *, is_named: bool = False, letter: str = "") -> Argument:
    """Return the argument of an option of a verb. A required one is positional, unless it `is_named`.

    A `letter` gives it a short name.
    """
    is_positional = given.is_required and not is_named
    names = [given.name] if is_positional else [f"--{given.name.replace('_', '-')}"]
    said: dict[str, Any] = {"help": given.shell_help, **_HOW.get(type(given), {})}
    if isinstance(given, Json):
        said |= {"help": f"{given.shell_help}. {JSON_HELP}", "type": json_value}
    if not is_positional:
        said |= {"required": True} if given.is_required else {"default": given.default}
    if isinstance(given, Flag):
        said |= {"action": "store_true"}
    elif isinstance(given, OneOf):
        said |= {"choices": given.values}
    elif "metavar" not in said:
        said |= {"metavar": given.metavar or given.name.upper()}
    return argument(*([f"-{letter}"] if letter else []), *names, **said)


def _both(one: Argument, other: Argument) -> Argument:
    return lambda parser: (one(parser), other(parser))


#: The reason, and who acts.
ACTING: Final = _both(
    argument("--reason", default="", help="the reason; it is recorded in the audit log"),
    argument(
        "--as", dest="user", metavar="USER", help="act as this user of Django, with no more than the user's permissions"
    ),
)
#: The expected revision of the verb's subject.
REVISION: Final = argument(
    "--revision",
    metavar="TEXT",
    help="the `revision` that its JSON had when it was seen; what has changed since is left alone",
)
#: A large change is tried, or done without a question.
YES: Final = argument("-y", "--yes", action="store_true", help="do not ask")
CONFIRMING: Final = _both(
    argument("--dry-run", action="store_true", help="say what would be done, and do nothing"), YES
)


# -- given values, and answers


def given_ids(ids: Iterable[str]) -> Iterator[str]:
    """Yield each id once, in order; "-" is replaced by the lines of standard input, as they arrive."""
    seen: set[str] = set()
    for each in ids:
        found: Iterable[str] = _lines() if each == "-" else (each,)
        for run_id in found:
            if run_id.strip() and run_id not in seen:
                seen.add(run_id)
                yield run_id


def selected_ids(selection: Selection) -> Iterator[str]:
    """Yield the ids of the selected runs, page by page."""
    cursor: str | None = None
    while True:
        ids, cursor = selection.page(cursor, MOST_LISTED)
        yield from ids
        if cursor is None:
            return


def _lines() -> Iterator[str]:
    while line := sys.stdin.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise CommandError("a line of standard input is too long for the id of a run", returncode=Exit.USAGE)
        yield line.rstrip("\r\n")


def is_at_terminal() -> bool:
    """Return whether a person at a terminal can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def need_terminal(otherwise: str) -> None:
    """Raise CommandError unless a person at a terminal can answer; it says what to do `otherwise`."""
    if not is_at_terminal():
        raise CommandError(otherwise, returncode=Exit.USAGE)


def confirm(output: Output, question: str) -> None:
    """Ask the person at the terminal. Raises CommandError unless the answer is yes."""
    if not confirmed(output, question):
        raise CommandError("nothing was done", returncode=Exit.REFUSED)


def confirmed(output: Output, question: str) -> bool:
    """Ask the person at the terminal; return True for yes."""
    output.stderr.write(f"{question} [y/N] ", ending="")
    output.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _read_all() -> str:
    """Read a value from standard input. At a terminal, print a hint that input is expected.

    Raises ValueError for more than twice `MAX_PAYLOAD_BYTES`: the recorded form of a value may be shorter.
    """
    if is_at_terminal():
        sys.stderr.write("Write the value, then Ctrl-D; Ctrl-C changes nothing.\n")
    limit = 2 * conf.MAX_PAYLOAD_BYTES
    text = sys.stdin.read(limit + 1)
    if len(text) > limit:
        raise ValueError(
            f"standard input has more than {limit:,} characters: store the data elsewhere (a file, a row of your own) and "
            'pass a reference to it, or raise DURABLE["MAX_PAYLOAD_BYTES"]'
        )
    return text


# -- types, for argparse: they raise ArgumentTypeError with what was expected


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return typed


@_typed
def duration(text: str) -> timedelta:
    """Parse "30 days", "2h", or seconds."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration(text)
    return parse_duration(seconds)


def whole_number(least: int = 1, most: int = MOST_WHOLE) -> Callable[[str], int]:
    """Return an argparse type for a whole number from `least` to `most`."""

    def number(text: str) -> int:
        found = read_whole(text, most)
        if found is None or found < least:
            span = f"from {least} {'on' if most == MOST_WHOLE else f'to {most}'}"
            raise ArgumentTypeError(f"a whole number {span} is expected, not {text[:50]!r}")
        return found

    return number


@_typed
def deadline(text: str) -> timedelta | datetime:
    """Parse "30 days", seconds, or an ISO 8601 date or time, in the current time zone unless it has one."""
    return _parsed(text) or duration(text)


#: By class of an option: the parser of its argument, and the placeholder in the help.
_HOW: Final[Mapping[type[Option], dict[str, Any]]] = {
    Number: {"type": int, "metavar": "N"},
    Decimal: {"type": float},
    Length: {"type": duration, "metavar": "DURATION"},
    Deadline: {"type": deadline, "metavar": "WHEN"},
    Until: {"metavar": "DURATION"},
}


@_typed
def moment(text: str) -> datetime:
    """Parse a time: an ISO 8601 date or time, in the current time zone unless it has one, or a duration before now."""
    if (found := _parsed(text)) is not None:
        return found
    try:
        return timezone.now() - parse_duration(text)
    except (ValueError, OverflowError):
        raise ValueError(f'{text!r} is not a time: write "2 hours" for two hours ago, or 2026-05-01T12:30') from None


def _parsed(text: str) -> datetime | None:
    found = parse_datetime(text)
    if found is None and (day := parse_date(text)) is not None:
        found = datetime(day.year, day.month, day.day)  # noqa: DTZ001  # the zone is added below
    return found and to_utc(found if timezone.is_aware(found) else timezone.make_aware(found))


@_typed
def json_value(text: str) -> Any:
    """Parse a value as JSON; a text that does not look like JSON stays a text. "-" reads JSON from standard input."""
    if text == "-":
        return _strict(_read_all())
    if text[:1] in ("{", "[", '"'):
        return _strict(text)
    try:
        return _strict(text)
    except NumberTooLargeError:
        raise
    except ValueError:
        return text


@_typed
def keyword(text: str) -> tuple[str, Any]:
    """Parse `name=value`, the value as `json_value` does."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise ValueError(f"{text!r} is not a keyword argument: write name=value")
    return name, json_value(value)


#: Keyword arguments of a workflow.
KEYWORDS: Final = argument(
    "-k", "--keyword", action="append", default=[], type=keyword, metavar="NAME=VALUE", help="may be given again"
)


def _strict(text: str) -> Any:
    try:
        return read_given(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"that is not JSON: {error}") from error
