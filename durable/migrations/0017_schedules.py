"""Schedules and their ticks: side tables, so that runs get no column."""

import datetime

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0016_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.fields.NameField(max_length=200, unique=True)),
                ("workflow", durable.models.fields.NameField(max_length=200)),
                ("queue", durable.models.fields.NameField(blank=True, default="", max_length=200)),
                ("input", durable.models.fields.SafeTextField(blank=True, default="")),
                ("rule", durable.models.fields.SafeTextField()),
                ("zone", durable.models.fields.NameField(default="UTC", max_length=100)),
                ("override_rule", durable.models.fields.SafeTextField(blank=True, default="")),
                ("override_zone", durable.models.fields.NameField(blank=True, default="", max_length=100)),
                (
                    "overlap",
                    durable.models.fields.NameField(
                        choices=[("skip", "skip"), ("queue", "queue"), ("allow", "allow"), ("replace", "replace")],
                        default="skip",
                        max_length=16,
                    ),
                ),
                (
                    "catch_up",
                    durable.models.fields.NameField(
                        choices=[("last", "last"), ("none", "none"), ("all", "all")], default="last", max_length=16
                    ),
                ),
                ("window", models.DurationField(blank=True, null=True)),
                ("jitter", models.DurationField(blank=True, default=datetime.timedelta(0))),
                (
                    "origin",
                    durable.models.fields.NameField(
                        choices=[("code", "code"), ("admin", "admin")], default="admin", max_length=16
                    ),
                ),
                ("paused", models.BooleanField(default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", durable.models.fields.SafeTextField(blank=True, default="")),
                ("pause_reason", durable.models.fields.SafeTextField(blank=True, default="")),
                ("gone_at", models.DateTimeField(blank=True, null=True)),
                ("next_at", models.DateTimeField(blank=True, null=True)),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("waiting_at", models.DateTimeField(blank=True, null=True)),
                ("waiting_number", models.BigIntegerField(blank=True, null=True)),
                ("last_at", models.DateTimeField(blank=True, null=True)),
                ("last_run_id", durable.models.fields.NameField(blank=True, default="", max_length=200)),
                ("open_runs", durable.models.fields.JSONTextField(blank=True, default=list)),
                ("tick_count", models.BigIntegerField(default=0)),
                ("changes", models.BigIntegerField(default=0)),
                ("created_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "permissions": [("operate_schedule", "Can pause, resume, run now and backfill schedules")],
                "indexes": [
                    models.Index(
                        condition=models.Q(("due_at__isnull", False)), fields=["due_at"], name="durable_schedule_due"
                    ),
                    models.Index(
                        condition=models.Q(("waiting_at__isnull", False)),
                        fields=["waiting_at"],
                        name="durable_schedule_waiting",
                    ),
                    models.Index(fields=["workflow", "name"], name="durable_schedule_by_workflow"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("overlap__in", ["skip", "queue", "allow", "replace"])),
                        name="durable_schedule_overlap_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("catch_up__in", ["last", "none", "all"])),
                        name="durable_schedule_catch_up_is_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tick",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.BigIntegerField()),
                ("moment", models.DateTimeField()),
                ("kind", durable.models.fields.NameField(default="tick", max_length=16)),
                (
                    "outcome",
                    durable.models.fields.NameField(
                        choices=[
                            ("started", "started"),
                            ("waiting", "waiting"),
                            ("skipped", "skipped"),
                            ("missed", "missed"),
                            ("merged", "merged"),
                            ("refused", "refused"),
                        ],
                        max_length=16,
                    ),
                ),
                ("run_id", durable.models.fields.NameField(blank=True, default="", max_length=200)),
                ("why", durable.models.fields.SafeTextField(blank=True, default="")),
                ("decided_at", models.DateTimeField()),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="ticks",
                        to="durable.schedule",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        condition=models.Q(("run_id", ""), _negated=True), fields=["run_id"], name="durable_tick_by_run"
                    ),
                    models.Index(fields=["outcome", "decided_at"], name="durable_tick_by_outcome"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule", "number"), name="durable_tick_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("outcome__in", ["started", "waiting", "skipped", "missed", "merged", "refused"])
                        ),
                        name="durable_tick_outcome_is_known",
                    ),
                ],
            },
        ),
    ]
