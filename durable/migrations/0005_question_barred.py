"""What the query of an inbox asks: who may not answer a question, and who has claimed it."""

from __future__ import annotations

from django.db import migrations

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Add the columns, empty in the rows that are there."""

    dependencies = [("durable", "0004_partitions")]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="question",
            name="barred",
            field=durable.models.rows.SafeTextField(blank=True, db_default="", default=""),
        ),
        migrations.AddField(
            model_name="question",
            name="claimed",
            field=durable.models.rows.NameField(blank=True, db_default="", default="", max_length=1500),
        ),
    ]
