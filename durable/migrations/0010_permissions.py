"""Permissions to give the output of a step, and to edit the input of a run."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0009_rollups"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="run",
            options={
                "ordering": ["-created_at", "-id"],
                "permissions": [
                    ("view_payload", "Can view inputs, outputs, messages and tracebacks"),
                    ("start_run", "Can start runs"),
                    ("operate_run", "Can send to, wake, pause, resume, cancel and recover runs"),
                    ("replay_run", "Can replay runs"),
                    ("give_output", "Can give the output of a step by hand"),
                    ("edit_input", "Can start runs again with another input"),
                ],
            },
        ),
    ]
