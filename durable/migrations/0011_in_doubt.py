"""Runs that may have done more than is recorded, because their database went back in time."""

from __future__ import annotations

from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Add the columns; no row has a value in them before an operator decides so."""

    dependencies = [("durable", "0010_run_statuses")]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="runlimit", name="in_doubt", field=durable.models.rows.MomentField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="databasemark", name="in_doubt_since", field=models.DateTimeField(blank=True, null=True)
        ),
    ]
