"""The statuses of runs, in a table of their own."""

from __future__ import annotations

from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout, RoomForUpdates


class Migration(migrations.Migration):
    """Create the table; its rows are updated in place."""

    dependencies = [("durable", "0009_step_summaries")]

    operations = [
        LockTimeout(),
        migrations.CreateModel(
            name="RunStatus",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=models.deletion.CASCADE,
                        primary_key=True,
                        related_name="shown",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("fence", models.BigIntegerField()),
                ("number", models.BigIntegerField()),
                ("text", durable.models.rows.SafeTextField()),
                ("done", models.FloatField(blank=True, null=True)),
                ("of", models.FloatField(blank=True, null=True)),
                ("eta", models.DateTimeField(blank=True, null=True)),
                ("at", models.DateTimeField()),
            ],
            options={"verbose_name_plural": "run statuses"},
        ),
        RoomForUpdates("RunStatus", percent=30),
    ]
