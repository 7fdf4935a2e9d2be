"""The places of a renamed operation: which locations are of it or below it, and what they become."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import Q

from durable.core.causes import ROLLBACK, numberless, place_of
from durable.core.location import ITERATION_PATTERN, MAX_LOCATION, MAX_LOCATION_BYTES, display_location, parent


class Renaming:
    """The locations at or below the pattern `old`, as those at or below `new`."""

    def __init__(self, old: str, new: str) -> None:
        self.old = old
        self.new = new
        self._name = new.rpartition("/")[2]
        scope = parent(old)
        self._scope = _regex(scope)
        self._new = _regex(new)
        inner = _regex(scope).pattern
        before = f"{inner}/" if scope else ""
        self._place = re.compile(f"({before}){re.escape(old.rpartition('/')[2])}(?=/|$)")
        self._old_place, self._new_place = place_of(old), place_of(new)

    def has(self, location: str) -> bool:
        """Return True for a location of the operation, or below it, under the old name."""
        return self._place.match(location) is not None

    def is_new(self, location: str) -> bool:
        """Return True for a location of the new name, or below it."""
        return re.match(f"{self._new.pattern}(?=/|$)", location) is not None

    def is_scope(self, location: str) -> bool:
        """Return True for the location around the operation."""
        return self._scope.fullmatch(location) is not None

    def of(self, location: str) -> str:
        """Return the location under the new name; others unchanged."""
        found = self._place.match(location)
        return location if found is None else f"{found.group(1)}{self._name}{location[found.end() :]}"

    def shown(self, location: str) -> str:
        """Return a location, or one as it is shown to people, under the new name."""
        if self.has(location):
            return self.of(location)
        return display_location(self.new) if location == display_location(self.old) else location

    def of_place(self, place: str) -> str:
        """Return the place of a cause (`durable.core.causes.place_of`) under the new name, without numbers.

        A place of which the numbers were left out may be that of other operations too (`is_shared`).
        """
        for old in (self._old_place, numberless(self._old_place)):
            if place.removesuffix(f" {ROLLBACK}") == old or place.startswith(f"{old} / "):
                return numberless(self._new_place + place[len(old) :])
        return place

    def is_shared(self, place: str) -> bool:
        """Return True for a place that operations with other numbers in their names have too."""
        old = self._old_place
        return old != numberless(old) and not (place == old or place.startswith((f"{old} / ", f"{old} {ROLLBACK}")))

    def in_column(self, column: str, pattern: str | None = None) -> Q:
        """Return a condition that rows of the old name meet, or of another pattern, and perhaps a few more."""
        pattern = self.old if pattern is None else pattern
        literal, tilde, _ = pattern.partition(ITERATION_PATTERN)
        if tilde:
            return Q(**{f"{column}__startswith": f"{literal}{ITERATION_PATTERN}"})
        return Q(**{column: pattern}) | Q(**{f"{column}__startswith": f"{pattern}/"})

    @staticmethod
    def is_too_long(location: str) -> bool:
        """Return True for a location that cannot be recorded."""
        return len(location) > MAX_LOCATION or len(location.encode()) > MAX_LOCATION_BYTES


def _regex(pattern: str) -> re.Pattern[Any]:
    return re.compile(
        "/".join("~[0-9]+" if each == ITERATION_PATTERN else re.escape(each) for each in pattern.split("/"))
    )
