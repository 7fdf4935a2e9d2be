"""What travels with runs, and with the runs of schedules that somebody has made."""

from __future__ import annotations

from django.db import migrations

import durable.models.rows
from durable.store.routines.operations import CreateRoutines, LockTimeout


class Migration(migrations.Migration):
    """Add the columns, which are empty in all rows."""

    dependencies = [("durable", "0015_published_index")]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="run", name="carried", field=durable.models.rows.SafeTextField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="schedule", name="carried", field=durable.models.rows.SafeTextField(blank=True, null=True)
        ),
        CreateRoutines(["durable_start_carried_1"]),
    ]
