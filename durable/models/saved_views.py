"""Saved views of the list of runs: the address of a list under a name."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from durable.models.fields import NameField, SafeTextField
from durable.models.rows import Row


class SavedView(Row):
    """A view of its owner, which all users see if it is shared. `query` is that of the list's address, without "?".

    The owner is known by the key of the user, who may be stored in another database.
    """

    name = NameField[str, str](max_length=80)
    query = SafeTextField[str, str](blank=True)
    owner_key = NameField[str, str](max_length=200)
    owner_label = SafeTextField[str, str](blank=True)
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        permissions = [("share_savedview", "Can share saved views of the list, and delete shared ones")]
        constraints = [models.UniqueConstraint(fields=["owner_key", "name"], name="durable_view_has_a_name")]
        indexes = [models.Index(fields=["name"], condition=Q(is_shared=True), name="durable_view_shared")]

    def __str__(self) -> str:
        return self.name
