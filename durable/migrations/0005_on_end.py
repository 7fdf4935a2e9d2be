"""The table of workflows that have an `on_end`."""

from __future__ import annotations

from django.db import migrations

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Create the table."""

    dependencies = [("durable", "0004_partitions")]

    operations = [
        LockTimeout(),
        migrations.CreateModel(
            name="WorkflowEnd",
            fields=[
                ("workflow", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={"default_permissions": ()},
        ),
    ]
