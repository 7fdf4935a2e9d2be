"""Name the abandoning of attempts in the text of the permission `operate_run`."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0012_saved_views"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="run",
            options={
                "ordering": ["-created_at", "-id"],
                "permissions": [
                    ("view_payload", "Can view inputs, outputs, messages and tracebacks"),
                    ("start_run", "Can start runs"),
                    ("operate_run", "Can send to, wake, pause, resume, cancel and recover runs, and abandon attempts"),
                    ("replay_run", "Can replay runs"),
                    ("give_output", "Can give the output of a step by hand"),
                    ("edit_input", "Can start runs again with another input"),
                    ("pause_queue", "Can pause and resume queues"),
                    ("hold_workflow", "Can hold and release the new starts of workflows"),
                    ("view_source", "Can view the source code of workflows"),
                ],
            },
        ),
    ]
