"""Steps that wait for a person: their statuses, the failure of a held run, and the permission to settle them."""

from __future__ import annotations

from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout, OnOtherDatabases

_STATUSES = ["pending", "running", "completed", "failed", "exhausted", "unknown", "held"]


class Migration(migrations.Migration):
    """Add the column, and let other databases than PostgreSQL know the statuses; there guards do."""

    dependencies = [("durable", "0006_mark")]

    operations = [
        LockTimeout(),
        migrations.AddField(
            model_name="failure",
            name="is_held",
            field=models.BooleanField(db_default=False, default=False),
        ),
        OnOtherDatabases(
            migrations.AlterField(
                model_name="entrymetadata",
                name="status",
                field=durable.models.rows.NameField(
                    choices=[(each, each) for each in _STATUSES], default="pending", max_length=16
                ),
            )
        ),
        OnOtherDatabases(
            migrations.RemoveConstraint(model_name="entrymetadata", name="durable_metadata_status_is_known")
        ),
        OnOtherDatabases(
            migrations.AddConstraint(
                model_name="entrymetadata",
                constraint=models.CheckConstraint(
                    condition=models.Q(("status__in", _STATUSES)), name="durable_metadata_status_is_known"
                ),
            )
        ),
        migrations.AlterModelOptions(
            name="run",
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "ordering": ["-created_at", "-id"],
                "permissions": [
                    ("view_payload", "Can view inputs, outputs, messages and tracebacks"),
                    ("start_run", "Can start runs"),
                    (
                        "operate_run",
                        "Can send to, wake, move, pause, resume, cancel and recover runs, and abandon attempts",
                    ),
                    ("replay_run", "Can replay runs"),
                    ("give_output", "Can give the output of a step by hand"),
                    ("settle_step", "Can settle steps that wait for a person"),
                    ("edit_input", "Can start runs again with another input"),
                    ("pause_queue", "Can pause and resume queues"),
                    ("hold_workflow", "Can hold and release the new starts of workflows"),
                    ("view_source", "Can view the source code of workflows"),
                ],
            },
        ),
    ]
