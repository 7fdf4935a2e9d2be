"""The index of the runs with a step that waits for a person."""

from __future__ import annotations

from django.db import migrations, models

from durable.store.routines.operations import AddIndexConcurrently


class Migration(migrations.Migration):
    """Create the index without a lock."""

    atomic = False

    dependencies = [("durable", "0007_held_steps")]

    operations = [
        AddIndexConcurrently(
            model_name="failure",
            index=models.Index(
                condition=models.Q(("is_held", True)), fields=["run_created_at", "run"], name="durable_failure_held"
            ),
        ),
    ]
