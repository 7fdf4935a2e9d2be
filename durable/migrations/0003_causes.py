"""Failures and their causes, and the function that writes them on PostgreSQL.

`durable_commit_1` stays: every other commit calls it.
"""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0002_functions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Cause",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fingerprint", durable.models.fields.NameField(max_length=16, unique=True)),
                ("place", durable.models.fields.NameField(blank=True, max_length=1024)),
                ("error_type", durable.models.fields.NameField(max_length=200)),
                ("pattern", durable.models.fields.SafeTextField(blank=True)),
                ("first_seen_at", models.DateTimeField()),
                ("muted_at", models.DateTimeField(blank=True, null=True)),
                ("muted_by", durable.models.fields.SafeTextField(blank=True, default="")),
            ],
        ),
        migrations.CreateModel(
            name="Failure",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="failure",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("workflow", durable.models.fields.NameField(max_length=200)),
                ("queue", durable.models.fields.NameField(max_length=200)),
                ("worker", durable.models.fields.SafeTextField(blank=True, default="")),
                ("failed_at", models.DateTimeField()),
                ("run_created_at", models.DateTimeField()),
                ("is_open", models.BooleanField(default=True)),
                (
                    "cause",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="failures",
                        to="durable.cause",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_open", True)),
                        fields=["cause", "run_created_at", "run"],
                        name="durable_failure_open",
                    ),
                    models.Index(
                        condition=models.Q(("is_open", True)),
                        fields=["cause", "failed_at"],
                        name="durable_failure_open_since",
                    ),
                    models.Index(fields=["cause", "failed_at"], include=["workflow"], name="durable_failure_by_time"),
                ],
            },
        ),
        CreateRoutines(["durable_fail_1"]),
    ]
