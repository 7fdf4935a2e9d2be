"""The permissions that have no model of their own: those on runs."""

from __future__ import annotations

from django.apps import apps
from django.db import migrations


class Migration(migrations.Migration):
    """Name the permissions."""

    dependencies = [
        ("durable", "0002_routines"),
        # their names have more than the 50 characters that its first migration allows
        *([("auth", "0002_alter_permission_name_max_length")] if apps.is_installed("django.contrib.auth") else []),
    ]

    operations = [
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
