"""Questions of runs to people."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Create the table with its indexes."""

    dependencies = [("durable", "0017_events")]

    operations = [
        LockTimeout(),
        migrations.CreateModel(
            name="Question",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("question_id", models.CharField(max_length=32, unique=True)),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("queue", durable.models.rows.QueueField(max_length=768)),
                ("form", durable.models.rows.SafeTextField(blank=True, default="")),
                ("permission", durable.models.rows.NameField(blank=True, default="", max_length=255)),
                ("assignee", durable.models.rows.NameField(blank=True, default="", max_length=1500)),
                ("about", durable.models.rows.SafeTextField(blank=True, default="")),
                ("nonce", models.CharField(max_length=64)),
                ("asked_at", models.DateTimeField()),
                ("expires_at", durable.models.rows.MomentField(blank=True, null=True)),
                ("next_at", durable.models.rows.MomentField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                ("outcome", durable.models.rows.NameField(blank=True, default="", max_length=16)),
                ("details", durable.models.rows.SafeTextField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["run", "asked_at"], name="durable_question_of_run"),
                    models.Index(
                        condition=models.Q(("closed_at__isnull", True)),
                        fields=["assignee", "permission", "asked_at"],
                        name="durable_question_open",
                    ),
                    models.Index(
                        condition=models.Q(("closed_at__isnull", True), ("next_at__isnull", False)),
                        fields=["next_at"],
                        name="durable_question_due",
                    ),
                ],
            },
        ),
    ]
