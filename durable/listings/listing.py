"""A listing: what is listed, the shapes of it, its filters, and how a page is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from durable.core.ids import MAX_ID
from durable.listings.shapes import Seen, Shape
from durable.operations.options import as_shell_help

MOST_LISTED: Final = 200  # of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list. `next_cursor` is None at its end. `about` has what is said of all of it.

    It `is_window` if it ends because so much was looked through for it: more that matches may follow.
    `seen` is what is seen beside the results where they need more than the list was asked with.
    """

    results: Sequence[Any]
    next_cursor: str | None = None
    about: Any = None
    is_window: bool = False
    seen: Seen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A condition that all that is listed has to meet.

    `kind` is `str`, `bool`, `datetime` or `int`, or `tuple` for a tag. One of `several` may be given again. A text has
    at most `longest` characters; one that `is_id` is the id of a run. A number is from `least` to `most`. `does` is a
    sentence for REST, and for the command line, unless `on_shell` has other words; `short` and `metavar` are its
    spelling there.
    """

    name: str
    kind: type = str
    does: str = ""
    on_shell: str = ""
    choices: Sequence[str] = ()
    several: bool = False
    default: Any = None
    longest: int = MAX_ID
    is_id: bool = False
    least: int = 0
    most: int = 0
    short: str = ""
    metavar: str = ""

    @property
    def shell_help(self) -> str:
        """What the command line says of it: no sentence."""
        return self.on_shell or as_shell_help(self.does)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list.

    `read(seen, **asked)` returns a page; `asked` has the filters, and `cursor` and `limit` of a list that `is_paged`.
    `over_rest` describes its endpoint, `list_<name>`, which needs the permissions `reads_with`. Where `missing` says
    that nothing has a name, `read` takes a `name` too, and `one_over_rest` describes the endpoint of what has it.
    """

    name: str
    item: type[Shape]
    page: type[Shape]
    read: Callable[..., Page]
    over_rest: str
    about: str = "surroundings"
    reads_with: tuple[str, ...] = ("view_run",)
    is_paged: bool = False
    filters: Sequence[Filter] = ()
    one_over_rest: str = ""
    missing: str = ""

    def find(self, seen: Seen, name: str) -> Any:
        """Return what has this name, None if nothing has."""
        return next(iter(self.read(seen, name=name).results), None)
