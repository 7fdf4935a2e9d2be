"""Locations: the path of an entry in a workflow, as text such as `ship/~3/label`.

A location consists of the names from the root to the operation, joined by "/". A loop's iteration n is the segment
`~n`, the n-th send of a scope is `send~n`, its n-th compensation `compensate~n`, its n-th tagging `tag~n`, and the n-th
value that it publishes under a name is `name~vn`. Names are escaped, so that no name can look like a path or one of
these segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from durable.core.records import RunState
from durable.core.words import ENGLISH, Words, gettext_noop

ANY_QUEUE = "*"
#: How the queues of links begin. A wait for any queue does not wait for these.
LINK_QUEUES = "durable.link:"
#: How the queues of waits for events begin: they too belong to one wait, so what is true of a link's queue is of these.
EVENT_QUEUES = f"{LINK_QUEUES}event:"
#: How those of questions to people begin, which are queues of links too.
QUESTION_QUEUES = f"{LINK_QUEUES}?"
ITERATION = gettext_noop("iteration {number}")
#: In a pattern of locations, any iteration of a loop.
ITERATION_PATTERN = "~"
_CHILD = "~"

MAX_NAME = 128  # characters of one name, before escaping
MAX_LOCATION = 1024  # characters of a whole location
MAX_LOCATION_BYTES = 1800  # in UTF-8: the limit of a unique index of PostgreSQL, beside a run's id

_MAX_LISTED = 5  # locations that an error names

_ITERATION = re.compile(r"(^|/)~\d+(?=/|$)")
# "/" and "~" separate, "%" escapes; control characters and lone surrogates cannot be stored as text everywhere
_UNSAFE = re.compile("[/~%\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPED = re.compile("%(?:u([0-9A-F]{4})|([0-9A-F]{2}))")


def escape(name: str) -> str:
    """Return `name` escaped as one segment of a location.

    Raises TypeError for anything but text, and ValueError for an empty name or more than 128 characters.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name must be text, not {type(name).__name__}: pass the operation's name first")
    if not name:
        raise ValueError("a name must not be empty: give each operation a name that is unique within its scope")
    if len(name) > MAX_NAME:
        raise ValueError(f'the name "{name[:32]}..." has {len(name)} characters; at most {MAX_NAME} are allowed')
    if name.isalnum():  # the common case
        return str.__str__(name)  # the text itself: str() of a member of an enumeration is another one
    return _UNSAFE.sub(_escaped, name)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"%{code:02X}" if code < 256 else f"%u{code:04X}"


def unescape(segment: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match.group(1) or match.group(2), 16)), segment)


def join(scope: str, segment: str) -> str:
    """Return the location of `segment` in `scope` ("" is the root).

    Raises ValueError past 1,024 characters or 1,800 bytes.
    """
    location = f"{scope}/{segment}" if scope else segment
    if len(location) > MAX_LOCATION or (
        len(location) > MAX_LOCATION_BYTES // 4 and _size(location) > MAX_LOCATION_BYTES
    ):
        raise ValueError(
            f'the location "{location[:64]}..." has {len(location)} characters ({_size(location)} bytes in UTF-8, of '
            f"{MAX_LOCATION_BYTES}); at most {MAX_LOCATION} are allowed: shorten the names or nest less deeply"
        )
    return location


def _size(location: str) -> int:
    return len(location.encode())


def display_location(location: str, words: Words = ENGLISH) -> str:
    """Return a location for display, with names as they were given: `a/~3/b` is "a / iteration 3 / b"."""
    return " / ".join(_displayed(each, words) for each in location.split("/"))


def _displayed(segment: str, words: Words) -> str:
    number = segment.removeprefix("~")
    if segment == number or not number.isdecimal():
        return value_name(segment) if segment.endswith("~v0") else unescape(segment)
    return words.gettext(ITERATION).format(number=words.number(int(number)))


def general_location(location: str) -> str:
    """Return the location with "~" for the number of each iteration: `polling/~/poll`."""
    return _ITERATION.sub(r"\1~", location) if "~" in location else location


def listed(locations: Iterable[str], number: int | None = None) -> str:
    """Return the first locations in quotes, and how many more there are, for an error text.

    `number` is the total, if `locations` are only the first ones.
    """
    every = list(locations)
    shown = every[:_MAX_LISTED]
    more = (len(every) if number is None else number) - len(shown)
    return ", ".join(f'"{each}"' for each in shown) + (f" and {more} more" if more else "")


def check_location(location: object) -> None:
    """Raise TypeError for a location that is no text."""
    if not isinstance(location, str):
        raise TypeError(f"a location is text, as handle.history() shows it, not {location!r}")


def parent(location: str) -> str:
    """Return the enclosing location; "" for the root's own entries."""
    return location.rpartition("/")[0]


def is_within(location: str, ancestor: str) -> bool:
    """Return True if `location` is `ancestor` or inside it."""
    return location == ancestor or location.startswith(f"{ancestor}/")


def iteration_segment(number: int) -> str:
    return f"~{number}"


def numbered_segment(kind: str, number: int) -> str:
    """Return the segment of a scope's n-th send, compensation or call that tags the run: they have no name.

    They are numbered from 0, each kind by itself.
    """
    return f"{kind}~{number}"


def value_segment(name: str, number: int) -> str:
    """Return the segment of a scope's n-th value under this name, numbered from 0: a name may be used again."""
    return f"{escape(name)}~v{number}"


def value_name(location: str) -> str:
    """Return the name under which the value at this location was published."""
    return unescape(location.rpartition("/")[2].partition("~v")[0])


def waiting_text(names: frozenset[str] | None, children: Iterable[str] = ()) -> str:
    """Return the `waiting_for` of a run. `names` is None for no message, empty for any, else the queues.

    Names are given escaped, so that "/" can separate them; with "" among them for any, the others are those of links.
    `children` are the children whose ends the run waits for.
    """
    if names is not None and (not names or "" in names):
        links = "/".join(sorted(each for each in names if each))
        return f"{ANY_QUEUE}/{links}/" if links else ANY_QUEUE
    tokens = [*sorted(names or ()), *map(child_token, sorted(children))]
    return f"/{'/'.join(tokens)}/" if tokens else ""


def awaited_queues(state: str, waiting_for: str) -> list[str] | None:
    """Return the queues whose messages a run waits for, [] for any; None if it waits for no message.

    `state` and `waiting_for` come from the run's row. A running run waits for no message: its row still has its last
    wait, because a claim does not reset `waiting_for`.
    """
    if not waiting_for or state == RunState.RUNNING:
        return None
    if waiting_for.startswith(ANY_QUEUE):
        return []
    queues = [unescape(each) for each in waiting_for.strip("/").split("/") if not each.startswith(_CHILD)]
    # a run that waits for children or for links alone waits for no message that code could send
    return [each for each in queues if not each.startswith(LINK_QUEUES)] or None


def is_of_question(queue: str) -> bool:
    """Return True for the queue of a question to people: nothing else is sent there."""
    return queue.startswith(QUESTION_QUEUES)


def child_token(run_id: str) -> str:
    """Return the token for the end of a child in its parent's `waiting_for`.

    No escaped queue contains "~", and no run's id contains "/", which separates.
    """
    return f"{_CHILD}{run_id}"


def awaited_children(waiting_for: str) -> list[str]:
    return [each[1:] for each in waiting_for.split("/") if each.startswith(_CHILD)] if waiting_for else []


def is_awaited(waiting_for: str, token: str) -> bool:
    """Return True if a run with this `waiting_for` waits for this escaped queue, or this child (`child_token`).

    If the run waits for any queue, the end of any child wakes it too: its row does not say which children it waits for.
    The answer of a link wakes it only if it waits for that link too.
    """
    is_any = waiting_for.startswith(ANY_QUEUE) and not token.startswith(LINK_QUEUES)
    return is_any or f"/{token}/" in waiting_for
