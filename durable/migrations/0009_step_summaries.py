"""The line of text that a step's call has for people, of steps that run."""

from __future__ import annotations

from django.db import migrations

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Add the column, with a default for workers of the version before."""

    dependencies = [("durable", "0008_held_runs")]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="activity",
            name="summary",
            field=durable.models.rows.SafeTextField(blank=True, db_default="", default=""),
        ),
    ]
