"""What a verb of operators is: on what, which operation, its options, and its words.

`durable.operations.catalogue` and `durable.operations.run_verbs` declare them. The surfaces make pages, endpoints and
subcommands of them; only they know forms, serializers and parsers. The permission of a verb is in
`durable.operations.audit.PERMISSIONS`, by its action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable.core.ids import MAX_ID
from durable.operations.audit import needed_by

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

UNSET: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a verb; without a default it has to be given.

    `label` and `help` are those of the field on a page. `does` is a sentence for REST, and for the command line, unless
    `on_shell` has other words.
    """

    name: str
    label: StrPromise | str = ""
    help: StrPromise | str = ""
    does: str = ""
    on_shell: str = ""
    default: Any = UNSET

    @property
    def is_required(self) -> bool:
        """Whether it has to be given."""
        return self.default is UNSET

    @property
    def shell_help(self) -> str:
        """What the command line says of it: no sentence."""
        return self.on_shell or f"{self.does[:1].lower()}{self.does[1:].removesuffix('.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Option):
    """Yes or no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Option):
    """A text. `check` raises TypeError or ValueError for what it cannot be."""

    longest: int = MAX_ID
    check: Callable[[str], object] | None = None


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
class Until(Option):
    """A moment in the future. People say for how long: pages and the command line take a `duration`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What verbs are about, found by its name; `path` is the address of all of them over REST.

    `unknown` are the errors of a verb for a name that nobody knows.
    """

    name: str
    path: str
    metavar: str = "NAME"
    unknown: type[Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb. `call(name, **options)` performs it; `action` is its name in the audit log.

    `word` is the end of its addresses, `command` the subcommand. `title`, `does` and `done` are shown on its page.
    `over_rest` describes its endpoint; `{needs}` stands for the permissions. `help` and `said` are the command line's;
    `said` may name the options, and `result` for what `call` returns. Without `done` and `said` a surface says itself
    what was done. `check(**options)` raises ValueError for options that do not fit; a page marks the first one then.
    After a grave one its subject is gone: `loses` says what of it, and `asks` is what the command line asks before.
    """

    action: str
    on: Subject
    word: str
    command: str
    call: Callable[..., Any]
    title: StrPromise
    does: StrPromise
    help: str
    over_rest: str = ""
    done: StrPromise | str = ""
    said: str = ""
    options: tuple[Option, ...] = ()
    check: Callable[..., object] | None = None
    is_grave: bool = False
    loses: str = ""
    asks: str = ""

    @property
    def asked(self) -> list[Option]:
        """The options as people are asked for them: those first that have to be given."""
        return sorted(self.options, key=lambda each: not each.is_required)

    @property
    def needs(self) -> str:
        """The permissions, as the description of the endpoint names them."""
        return f"Needs {' and '.join(f'`durable.{each}`' for each in needed_by(self.action))}."
