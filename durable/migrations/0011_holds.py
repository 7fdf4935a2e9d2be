"""Holds of queues and of workflows, and the functions that look them up on PostgreSQL."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0010_permissions"),
    ]

    operations = [
        migrations.CreateModel(
            name="HeldStart",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="held_start",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("workflow", durable.models.fields.NameField(max_length=200)),
                ("due_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["workflow", "run"], name="durable_heldstart_by_workflow")],
            },
        ),
        migrations.CreateModel(
            name="Hold",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    durable.models.fields.NameField(
                        choices=[("queue", "queue"), ("workflow", "workflow")], max_length=16
                    ),
                ),
                ("name", durable.models.fields.NameField(max_length=200)),
                ("held_at", models.DateTimeField()),
                ("held_by", durable.models.fields.SafeTextField(blank=True, default="")),
                ("reason", durable.models.fields.SafeTextField(blank=True, default="")),
                ("summary", durable.models.fields.SummaryField(blank=True, default="")),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "name"), name="durable_hold_once"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["queue", "workflow"])), name="durable_hold_kind_is_known"
                    ),
                ],
            },
        ),
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
                    ("pause_queue", "Can pause and resume queues"),
                    ("hold_workflow", "Can hold and release the new starts of workflows"),
                    ("view_source", "Can view the source code of workflows"),
                ],
            },
        ),
        CreateRoutines(["durable_start_2", "durable_claim_3"]),
    ]
