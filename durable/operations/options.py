"""The options of verbs and starts. Each surface makes form fields or arguments of them in its own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from durable.core.ids import MAX_ID

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

UNSET: Final = object()


def _as_given(value: Any) -> Any:
    return value


def as_shell_help(sentence: str) -> str:
    """Return a sentence from REST's document as the help text of an argument: without capital and full stop."""
    return f"{sentence[:1].lower()}{sentence[1:].removesuffix('.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a verb or of a start, whose name is that of its field; required if it has no default.

    `label` and `help` belong to the field on a page. `does` is a sentence for REST, and for the command line unless
    `on_shell` is given. `metavar` stands for the value there. `read` converts a value for the operation.
    `needs` are the options without which it says nothing, each with the text beside a page's empty field.
    """

    name: str = ""
    label: StrPromise | str = ""
    help: StrPromise | str = ""
    does: str = ""
    on_shell: str = ""
    default: Any = UNSET
    metavar: str = ""
    read: Callable[[Any], Any] = _as_given
    needs: tuple[tuple[str, StrPromise], ...] = ()

    @property
    def is_required(self) -> bool:
        return self.default is UNSET

    def is_said(self, value: Any) -> bool:
        """Return whether this value says something; an empty one does not."""
        return value is not self.default and bool(value)

    @property
    def shell_help(self) -> str:
        """The help text of the command line, without capital and full stop."""
        return self.on_shell or as_shell_help(self.does)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Option):
    """Yes or no."""

    default: Any = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Option):
    """A text. `check` raises TypeError or ValueError for an invalid one."""

    longest: int = MAX_ID
    shortest: int = 0
    check: Callable[[str], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Id(Text):
    """The id of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Text):
    """One of the texts that `among()` returns; `check` may allow others too."""

    among: Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Option):
    """A whole number."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal(Option):
    """A finite number."""

    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf(Option):
    """One of the keys of `words`, whose values are the labels on a page; "" labels the choice of none."""

    words: Mapping[str, StrPromise | str] = field(hash=False)

    @property
    def values(self) -> list[str]:
        """The allowed texts."""
        return [each for each in self.words if each]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length(Option):
    """A length of time: seconds, or a text such as "3 hours"."""

    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline(Option):
    """A length of time from now, or a moment."""

    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags(Option):
    """Tags of a run."""

    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Json(Option):
    """Any value of JSON, null too; its default marks that none was given."""

    def is_said(self, value: Any) -> bool:
        """Return whether a value is given."""
        return value is not self.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Until(Option):
    """A moment in the future. On pages and the command line, people give a `duration` instead."""
