"""The workflows of this process, by name, the messages that they declare, and the names of durable's own.

Owns the map from names to definitions. `durable.apps` imports the modules that fill it. Must not know how a workflow
runs, nor use Django. Nothing is refused while modules are imported: two functions with one name are both kept here, and
a system check reports them with their source locations.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Protocol

from durable.core.body_types import Misfit, check_type, fit
from durable.core.errors import MessageNotAcceptedError
from durable.core.limits.workflow_limits import WorkflowLimits
from durable.core.location import awaited_queues, escape
from durable.core.names.renames import names_of_workflow
from durable.core.outcomes import WhenExhausted
from durable.core.records import ENDED, RunRecord


class MessageTypes:
    """The messages that one workflow declares: names of queues with the types of their bodies.

    A workflow without a declaration accepts any message. With one it accepts only these: another name is more often
    misspelt than one that the code will ask for. Raises TypeError for an invalid type, ValueError for an invalid name.
    """

    def __init__(self, declared: Mapping[str, Any]) -> None:
        if not isinstance(declared, Mapping):
            raise TypeError(
                f"messages are names with the types of their bodies, not {declared!r}: write "
                'messages={"approved": Approval}'
            )
        self._types = {name: NoneType if hint is None else hint for name, hint in declared.items()}
        for name, hint in self._types.items():
            escape(name)
            check_type(hint, f'the message "{name}"')

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __getitem__(self, name: str) -> Any:
        return self._types[name]

    def get(self, name: str) -> Any:
        """Return the type of the message's body; None if it is not declared."""
        return self._types.get(name)

    def nearest(self, name: str) -> list[str]:
        """Return the declared names that are most similar to this one."""
        return difflib.get_close_matches(name, self._types, n=3)

    def check(self, workflow: str, name: str, body: Any) -> None:
        """Raise MessageNotAcceptedError if the workflow does not accept the message."""
        if name not in self._types:
            raise MessageNotAcceptedError(workflow, name, declared=tuple(self), nearest=self.nearest(name))
        try:
            fit(body, self._types[name])
        except Misfit as misfit:
            raise MessageNotAcceptedError(workflow, name, faults=misfit.faults) from None


class EndFunction(Protocol):
    """The function that a workflow calls in the commit that ends a run (`on_end`)."""

    @property
    def name(self) -> str:
        """Its dotted path, for messages."""

    def is_here(self) -> bool:
        """Return whether this process can import it."""

    def __call__(self, run: RunRecord, /) -> None:
        """Call it for a run that has ended, inside the transaction of the end. Raises what it raises."""


class WorkflowDefinition(Protocol):
    """The registry's entry of a workflow: its name, the default queue of its runs, and its function."""

    @property
    def name(self) -> str:
        """The workflow's name; it may be known only once the apps are loaded."""

    @property
    def queue(self) -> str:
        """The RQ queue of its runs, unless a start names another."""

    @property
    def function(self) -> Callable[..., Any]:
        """The workflow's code."""

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function."""

    @property
    def limits(self) -> WorkflowLimits | None:
        """The limits whose slots its runs hold; None for none."""

    @property
    def messages(self) -> MessageTypes | None:
        """The messages that its runs accept; None for any."""

    @property
    def on_end(self) -> EndFunction | None:
        """The function to call in the commit that ends a run; None for none."""

    @property
    def on(self) -> str | None:
        """The name of the event that starts its runs; None for none."""

    @property
    def is_quiet(self) -> bool:
        """True if lists of runs omit its runs, unless they have failed or are asked for."""

    @property
    def when_exhausted(self) -> WhenExhausted:
        """What its steps do when their attempts are used up: the default of their option of that name."""

    @property
    def mistakes(self) -> tuple[type[Exception] | str, ...] | None:
        """The classes of errors that are mistakes in its code, or their dotted paths; None for those of the
        settings.
        """


class UnknownWorkflowError(KeyError):
    """No workflow has this name; `nearest` are similar names."""

    def __init__(self, name: str, names: Iterable[str]) -> None:
        self.name = name
        self._names = tuple(names)
        super().__init__(name)

    @property
    def nearest(self) -> list[str]:
        """The similar names, computed only when asked for: each pass of a `Harness`'s own workflow raises this error
        unseen.
        """
        return difflib.get_close_matches(self.name, self._names, n=3)

    def __str__(self) -> str:
        advice = f"did you mean {' or '.join(repr(each) for each in self.nearest)}? " if self.nearest else ""
        return (
            f"there is no workflow {self.name!r}; {advice}Workflows are found in the modules named workflows.py of "
            "the installed apps: check the name, and that this process runs the code that has it"
        )


@dataclass(frozen=True, slots=True)
class NameConflict:
    """One name shared by several functions; the last of them has it."""

    name: str
    definitions: tuple[WorkflowDefinition, ...]


class Registry:
    """Definitions by name. Names are resolved when first asked for: at import an app's label may not be known yet."""

    def __init__(self) -> None:
        self._definitions: list[WorkflowDefinition] = []
        self._by_name: dict[str, list[WorkflowDefinition]] | None = None
        self._discovered: list[WorkflowDefinition] = []
        self._discovered_names: frozenset[str] | None = None
        self.changes = 0  # how often a definition was added or removed

    def register(self, definition: WorkflowDefinition, *, discovered: bool = False) -> None:
        """Add a definition. Never raises: a system check reports conflicting names later.

        `discovered` is True for a definition imported during app set-up, and so in every process that is set up alike.
        """
        if not any(each is definition for each in self._definitions):
            self._definitions.append(definition)
            self._by_name = None
            self.changes += 1
            if discovered:
                self._discovered.append(definition)
                self._discovered_names = None

    def unregister(self, definition: WorkflowDefinition) -> None:
        """Remove a definition; for tests that define workflows of their own."""
        self._definitions = [each for each in self._definitions if each is not definition]
        self._discovered = [each for each in self._discovered if each is not definition]
        self._by_name = self._discovered_names = None
        self.changes += 1

    def is_discovered(self, name: str) -> bool:
        """Return True if a definition of this name was imported during app set-up."""
        if self._discovered_names is None:
            self._discovered_names = frozenset(each.name for each in self._discovered)
        return name in self._discovered_names

    def get(self, name: str) -> WorkflowDefinition:
        """Return the definition of this name, the newest if several have it. Raises UnknownWorkflowError.

        A workflow that a migration has renamed is found by any of its names.
        """
        names = self._names()
        for each in (name, *reversed(names_of_workflow(name))):
            if each in names:
                return names[each][-1]
        raise UnknownWorkflowError(name, names)

    def __iter__(self) -> Iterator[WorkflowDefinition]:
        return (each[-1] for _, each in sorted(self._names().items()))

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def clashes(self) -> list[NameConflict]:
        """Return the names that several functions share."""
        return [NameConflict(name, tuple(each)) for name, each in sorted(self._names().items()) if len(each) > 1]

    def _names(self) -> dict[str, list[WorkflowDefinition]]:
        if self._by_name is None:
            by_name: dict[str, list[WorkflowDefinition]] = {}
            for each in self._definitions:
                others = [other for other in by_name.get(each.name, []) if not is_same_function(other, each)]
                by_name[each.name] = [*others, each]
            self._by_name = by_name
        return self._by_name


def is_same_function(one: WorkflowDefinition, other: WorkflowDefinition) -> bool:
    """Return True if two definitions come from the same source function: a module imported again creates its functions
    anew.
    """
    places = [(each.function.__module__, each.function.__qualname__) for each in (one, other)]
    return places[0] == places[1]


def source_location(definition: WorkflowDefinition) -> str:
    """Return where a definition's function is defined, for messages: `shop.workflows.fulfil
    (/app/shop/workflows.py:12)`.
    """
    function = inspect.unwrap(definition.function)
    path = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
    code = getattr(function, "__code__", None)
    return f"{path} ({code.co_filename}:{code.co_firstlineno})" if code is not None else path


#: The registry of this process.
registry = Registry()
register = registry.register
get = registry.get
is_discovered = registry.is_discovered
clashes = registry.clashes


def find(name: str) -> WorkflowDefinition | None:
    """Return the workflow of this name, None if this process does not know it."""
    try:
        return registry.get(name)
    except UnknownWorkflowError:
        return None


def all() -> list[WorkflowDefinition]:
    """Return all workflows, sorted by name."""
    return list(registry)


# -- durable's own workflows: bulks, and runs that send alerts

#: The workflow whose runs send alerts, one for each alert and target.
ALERT: Final = "durable.alert"


#: The workflow that performs background bulks with the permissions of the user who requested them.
BULK: Final = "durable.bulk"

#: The message queue of a bulk that its canary has stopped: True to go on with the rest, anything else to stop there.
DECISION: Final = "decision"

#: The prefix of the names of durable's own workflows.
INTERNAL: Final = "durable."

#: The decision to go on and to try the next runs alone first; True goes on with all, False stops.
CANARY: Final = "canary"


def is_stopped(workflow: str, state: str, waiting_for: str) -> bool:
    """Return whether a run is a bulk that its canary has stopped and that waits for a decision."""
    return workflow == BULK and state not in ENDED and awaited_queues(state, waiting_for) == [DECISION]


def replays_prefix(bulk_id: str) -> str:
    """Return the prefix of the ids of the runs that a bulk creates by replaying others."""
    return f"{bulk_id[:150]}-"
