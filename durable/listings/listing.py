"""A listing: its items, their shapes, its filters, and the function that reads a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Final

from durable.core.ids import MAX_ID
from durable.listings.shapes import Seen, Shape
from durable.operations.options import as_shell_help

MOST_LISTED: Final = 200  # items of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list. `next_cursor` is None at its end. `about` has data about the whole list.

    `is_window`: the page ended because many rows were examined; more matches may follow. `seen` replaces the caller's
    `Seen` if the results need more.
    """

    results: Sequence[Any]
    next_cursor: str | None = None
    about: Any = None
    is_window: bool = False
    seen: Seen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A condition on the listed items.

    `kind` is `str`, `bool`, `datetime` or `int`, or `tuple` for a tag. With `several` it may be given several times. A
    text has at most `longest` characters; with `is_id` it is the id of a run; `check` raises ValueError for one that
    nothing can meet. A number is from `least` to `most`.
    `does` is a sentence for REST, and for the command line unless `on_shell` is given; `short` and `metavar` are its
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
    check: Callable[[str], object] | None = None
    least: int = 0
    most: int = 0
    short: str = ""
    metavar: str = ""

    @property
    def shell_help(self) -> str:
        """The help text of the command line, without capital and full stop."""
        return self.on_shell or as_shell_help(self.does)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list.

    `read(seen, **asked)` returns a page; `asked` has the filters, and `cursor` and `limit` of a list that `is_paged`.
    `over_rest` describes its endpoint, `list_<name>`, which needs the permissions `reads_with`. With `missing`, the
    message for an unknown name, `read` also takes a `name`, and `one_over_rest` describes the endpoint of a single
    item. A list that is `of_run` takes a `run`, and is never read from a replica: a run is shown as it is now. `word`
    is the end of its address, if that is not its name.
    """

    name: str
    item: type[Shape]
    page: type[Shape]
    read: Callable[..., Page]
    over_rest: str
    about: str = "surroundings"
    reads_with: tuple[str, ...] = ("view_run",)
    is_paged: bool = False
    of_run: bool = False
    filters: Sequence[Filter] = ()
    one_over_rest: str = ""
    missing: str = ""
    word: str = ""

    @property
    def path(self) -> str:
        """The end of its address, after that of the run for a list that is `of_run`."""
        return self.word or self.name.replace("_", "-")

    def find(self, seen: Seen, name: str) -> Any:
        """Return the item with this name, or None."""
        return next(iter(self.read(seen, name=name).results), None)


def list_of(item: type[Shape], name: str, says: str, *, is_paged: bool = True) -> type[Shape]:
    """Return the shape of a list of these items, or of a page of it; `name` and `says` are those of its schema."""
    names: dict[str, Any] = {
        "results": GenericAlias(list, (item,)),
        **({"next_cursor": str | None} if is_paged else {}),
    }
    return type(name, (Shape,), {"__doc__": says, "__annotations__": names})
