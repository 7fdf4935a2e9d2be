"""The messages that a workflow declares: names of queues with the types of their bodies.

A workflow without a declaration accepts any message. With one it accepts only the declared messages: another name is
more often misspelt than one that the code will ask for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from durable.core.body_types import Misfit, check_type, fit
from durable.core.errors import MessageNotAcceptedError
from durable.core.location import escape


class MessageTypes:
    """The declared messages of one workflow. Raises TypeError for an invalid type, and ValueError for an invalid
    name.
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
        """Return the type of the message's body."""
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
