"""The queries of one run."""

from __future__ import annotations

from rest_framework.exceptions import ValidationError

from durable.api.long_poll import MAX_WAIT
from durable.api.serializers.fields import Number, Query, Text

_EXPANDABLE = ("input", "output")


class RunQuery(Query):
    """The expansions of a run."""

    expand = Text(required=False, help_text="`input`, `output`, or both, separated by a comma.")

    def validate_expand(self, value: str) -> list[str]:
        """Return the names. Raises ValidationError for unknown ones."""
        names = value.split(",")
        if unknown := [name for name in names if name not in _EXPANDABLE]:
            raise ValidationError(f"{unknown[0]!r} cannot be expanded; {' and '.join(_EXPANDABLE)} can.")
        return names


class ResultQuery(Query):
    """The time to wait."""

    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")
