"""Links: addresses at which the outside answers a run, and the waits for the answers.

Owns their records. A link is one entry, which is completed when the link exists. Its data has what the token of the
address is derived from, never the token: `durable.link_tokens` derives it with a key that no database has. Each pass
gets the same token. The side table has the hash of the token, and whether the link was used (`LinkOpened`).

An answer is a message to a queue that belongs to one link (`queue_of`). A wait for it is the entry of a message. Before
such a wait records that nothing has come until the link expired, a commit closes the link: afterwards no answer is
accepted, so none is lost.

A token stands in no record. Where a value of the run contains it, a stand-in is recorded (`HiddenTokens`), which a pass
of the run replaces by the token again. Errors have the tokens cut out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from durable.core.duration import later
from durable.core.effects import SAVE, Ask, Operation
from durable.core.errors import CUT_TOKEN, TOKEN_PREFIX, LinkAddressError
from durable.core.location import LINK_QUEUES, unescape
from durable.core.messages import Wait, body_of, receive_one
from durable.core.names.recorded_names import recorded_name, resolve_name
from durable.core.options import importable_name
from durable.core.records import EntryKind, EntryRecord, LinkOpened, LinkRecord
from durable.core.scope import Scope

_MOST: Final = 80  # characters of a link's name in its queue


def queue_of(link_id: str, name: str) -> str:
    return f"{LINK_QUEUES}{link_id}:{name[:_MOST]}"


def is_of_link(queue: str) -> bool:
    """Return True for the queue of a link: nothing else is sent there."""
    return queue.startswith(LINK_QUEUES)


def name_of(location: str) -> str:
    return unescape(location.rpartition("/")[2])


class HiddenTokens:
    """The tokens of one run's links, by link, and their stand-ins in recorded text."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def know(self, link_id: str, token: str) -> None:
        self._tokens[link_id] = token

    def hide(self, text: str) -> str:
        """Replace the tokens in codec text by their stand-ins."""
        if TOKEN_PREFIX in text:
            for link_id, token in self._tokens.items():
                text = text.replace(token, _stand_in(link_id))
        return text

    def show(self, text: str) -> str:
        """Replace the stand-ins by the tokens."""
        if TOKEN_PREFIX in text:
            for link_id, token in self._tokens.items():
                text = text.replace(_stand_in(link_id), token)
        return text


def _stand_in(link_id: str) -> str:
    return f"{TOKEN_PREFIX}hidden_{link_id}"


class Address(NamedTuple):
    """What stands before and behind the token in the address of a link; or the `problem` that there is none.

    `is_recorded`: nothing may be written, and a link whose token cannot be derived stays as it is.
    """

    before: str = ""
    behind: str = ""
    problem: str = ""
    is_recorded: bool = False

    def of(self, token: str) -> str:
        return f"{self.before}{token}{self.behind}"


@dataclass(frozen=True, slots=True)
class PeekAddress(Ask):
    """Ask for the address of links. Answer: an `Address`."""


class OpenLink(NamedTuple):
    """A link as the code has it."""

    id: str
    location: str
    name: str
    queue: str
    url: str
    expires_at: datetime | None


def open_link(scope: Scope, name: str, timeout: timedelta | None, verify: str | Callable[..., Any] | None) -> Operation:
    """Return an `OpenLink`, which answers until `timeout` has passed or the run has ended.

    Raises TypeError and ValueError for a `verify` that cannot be imported by its name. Stops the run with
    LinkAddressError if links have no address.
    """
    node = scope.cursor.match(EntryKind.LINK, name)
    address: Address = yield PeekAddress()
    if address.problem:
        scope.journal.stop(LinkAddressError(address.problem))
    entry = node.entry
    if entry is None:
        expires_at = None if timeout is None else later(scope.environment.now(), timeout, "a link")
        data = {
            "verify": verify_name(verify),
            "expires_at": None if expires_at is None else expires_at.isoformat(),
            **(new := scope.environment.new_link()),
            "queue": queue_of(new["id"], name),
        }
        entry = scope.create(node, EntryKind.LINK, data=data)
        token = _token(scope, entry)
        scope.journal.add(_opened(entry, token))
        scope.journal.finish(entry)
        yield SAVE
    elif (token := _token(scope, entry)) is None and address.is_recorded:
        token = CUT_TOKEN
    elif token is None:
        # a copy in another run, an imported one, or one whose key is gone: it keeps its id and queue, and so its
        # answers; which function is called is said by the code, not by the records
        renewed = {**entry.data, **scope.environment.new_link()}
        renewed |= {"verify": verify_name(verify), "id": entry.data["id"]}
        scope.journal.update(entry, data=renewed)
        token = _token(scope, entry)
        scope.journal.add(_opened(entry, token))
        yield SAVE
    scope.determinism.observe(entry)
    text = entry.data["expires_at"]
    expires_at = None if text is None else datetime.fromisoformat(text)
    return OpenLink(
        id=entry.data["id"],
        location=entry.location,
        name=name,
        queue=entry.data["queue"],
        url=address.of(token or ""),
        expires_at=expires_at,
    )


def _token(scope: Scope, entry: EntryRecord) -> str | None:
    return scope.environment.know_link(entry.data)


def _opened(entry: EntryRecord, token: str | None) -> LinkOpened:
    assert token is not None
    text = entry.data["expires_at"]
    return LinkOpened(
        token=token,
        link_id=entry.data["id"],
        location=entry.location,
        queue=entry.data["queue"],
        verify=entry.data["verify"] or "",
        expires_at=None if text is None else datetime.fromisoformat(text),
    )


def verify_name(verify: str | Callable[..., Any] | None) -> str | None:
    """Return the name, "module:qualname", by which `verify` is recorded; None for none.

    Raises TypeError for what is neither a function that can be imported nor its name, and ValueError for a name of
    nothing that can be called.
    """
    if verify is None:
        return None
    if not isinstance(verify, str):
        name = importable_name(verify) if callable(verify) else None
        if name is None:
            raise TypeError(
                f"verify is a function at the top level of a module, or its name, {verify!r} is not: it is recorded by "
                'name, so that the process that receives the answer can import it. Write verify="shop.bank.signature"'
            )
        return name
    try:
        name = recorded_name(verify)
        resolve_name(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"verify names a function that can be imported, {verify!r} does not: {error}") from error
    return name


def answer_of(scope: Scope, link: OpenLink, name: str, timeout: timedelta | None) -> Operation:
    """Wait for the answer of the link, and return its body. Raises LinkTimeoutError when the wait has ended."""
    wait = Wait(
        name=name,
        names=[link.queue],
        timeout=timeout,
        until=link.expires_at,
        link=link.location,
        link_id=link.id,
    )
    received = yield from receive_one(scope, wait)
    return body_of(scope, wait, received)


class LinkState(StrEnum):
    """What a link does with an answer. The values are codes of REST and of the command line."""

    OPEN = "open"
    USED = "used"
    EXPIRED = "expired"
    CLOSED = "closed"  # the run has ended, is rolling back, or has stopped to wait
    REPLACED = "replaced"  # a replay has taken back the operation that opened it
    UNOPENED = "unopened"  # of an imported run, or of a copy: the run's next pass opens it, with a new address


def state_of(link: LinkRecord, now: datetime, *, has_ended: bool, is_there: bool, is_used: bool) -> LinkState:
    """Return the state of a link.

    `has_ended`: its run has ended or is rolling back. `is_there`: its entry is in the history. `is_used`: an answer of
    it has come.
    """
    if is_used:
        return LinkState.USED
    if not is_there:
        return LinkState.REPLACED
    if link.expires_at is not None and link.expires_at <= now:
        return LinkState.EXPIRED
    return LinkState.CLOSED if has_ended or link.closed_at is not None else LinkState.OPEN
