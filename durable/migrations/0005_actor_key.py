"""The audit log knows a user of another database by a key."""

from __future__ import annotations

from django.db import migrations

from durable.models.rows import NameField
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Add the column."""

    dependencies = [("durable", "0004_partitions")]

    operations = [
        LockTimeout(),
        migrations.AddField(
            "operatoraction", "actor_key", NameField(blank=True, db_default="", default="", max_length=300)
        ),
    ]
