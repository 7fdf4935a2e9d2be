"""The base of durable's models: columns that were left out are read from the database that the row was read from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models


class Row(models.Model):
    """A row of one of durable's tables.

    Django asks the project's routers where to read a deferred column. A router that sends reads to a replica would have
    it read from there, where the row may be missing or older.
    """

    class Meta:
        abstract = True

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Any] | None = None,
    ) -> None:
        """Read the row, or these columns of it, again: from where it was read, if nothing names another database."""
        if from_queryset is None:
            using = using or self._state.db
        super().refresh_from_db(using, fields, from_queryset)
