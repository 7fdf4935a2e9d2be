<<<<<<< HEAD
"""The base of durable's models: columns that were left out are read from the database that the row was read from."""
=======
"""What rows with large columns share. Lists leave such columns out."""
>>>>>>> 3438038b (Refer to users and read columns in durable's database where a router reads from a replica)

from __future__ import annotations

from collections.abc import Iterable
<<<<<<< HEAD
from typing import Any
=======
from typing import Self
>>>>>>> 3438038b (Refer to users and read columns in durable's database where a router reads from a replica)

from django.db import models

__all__ = ["Row"]


class Row(models.Model):
<<<<<<< HEAD
    """A row of one of durable's tables.

    Django asks the project's routers where to read a deferred column. A router that sends reads to a replica would have
    it read from there, where the row may be missing or older.
    """

    class Meta:
=======
    """A row that reads a column which was left out where it has read the others, whatever the project's router says.

    A replica may not have the row yet.
    """

    class Meta:
        """No table of its own."""

>>>>>>> 3438038b (Refer to users and read columns in durable's database where a router reads from a replica)
        abstract = True

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
<<<<<<< HEAD
        from_queryset: models.QuerySet[Any] | None = None,
    ) -> None:
        """Read the row, or these columns of it, again: from where it was read, if nothing names another database."""
        if from_queryset is None:
            using = using or self._state.db
        super().refresh_from_db(using, fields, from_queryset)
=======
        from_queryset: models.QuerySet[Self] | None = None,
    ) -> None:
        """Read the row again, as Django does; from its own database unless told another one."""
        own = self._state.db if from_queryset is None else None
        super().refresh_from_db(using or own, fields, from_queryset)
>>>>>>> 3438038b (Refer to users and read columns in durable's database where a router reads from a replica)
