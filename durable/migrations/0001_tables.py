"""The tables."""

from __future__ import annotations

import datetime

import django.db.models.deletion
from django.conf import settings
from django.core.management import CommandError
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

import durable.models.rows
from durable.store.routines.operations import RoomForUpdates


def refuse_tables_of_before(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Stop where the tables were made before the first release, by migrations of other names."""
    connection = schema_editor.connection
    if "durable_run" not in connection.introspection.table_names():
        return
    raise CommandError(
        f'The database "{connection.alias}" has tables that an earlier checkout of durable made, before its first '
        "release. Delete the database, create it again and run `manage.py migrate`. To keep the other apps' tables, drop "
        "only the tables and functions whose names begin with durable_, and delete the rows of the app durable from "
        "django_migrations before that."
    )


class Migration(migrations.Migration):
    """Create all tables, with their indexes and constraints."""

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunPython(refuse_tables_of_before, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False, verbose_name="id"),
                ),
                ("workflow", durable.models.rows.NameField(max_length=200)),
                ("queue", durable.models.rows.NameField(max_length=200)),
                (
                    "state",
                    durable.models.rows.NameField(
                        choices=[
                            ("pending", "pending"),
                            ("running", "running"),
                            ("sleeping", "sleeping"),
                            ("paused", "paused"),
                            ("rolling_back", "rolling back"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("input", durable.models.rows.SafeTextField()),
                ("output", durable.models.rows.SafeTextField(blank=True, null=True)),
                ("error", durable.models.rows.ErrorField(blank=True, null=True)),
                ("origins", durable.models.rows.JSONTextField(blank=True, default=list)),
                ("wake_at", models.DateTimeField(blank=True, null=True)),
                ("waiting_for", durable.models.rows.SafeTextField(blank=True, default="")),
                ("summary", durable.models.rows.SummaryField(blank=True, default="")),
                ("fence", models.BigIntegerField(default=0)),
                ("lease_expires_at", models.DateTimeField(blank=True, null=True)),
                ("worker", durable.models.rows.SafeTextField(blank=True, default="")),
                ("crashes", models.IntegerField(default=0)),
                ("change_seq", models.BigIntegerField(default=0)),
                ("message_count", models.BigIntegerField(default=0)),
                (
                    "pending_request",
                    durable.models.rows.NameField(
                        blank=True,
                        choices=[
                            ("", ""),
                            ("pause", "pause"),
                            ("cancel", "cancel"),
                            ("cancel_rollback", "cancel rollback"),
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
                ("request_reason", durable.models.rows.SafeTextField(blank=True, default="")),
                ("state_after_rollback", durable.models.rows.NameField(blank=True, default="", max_length=16)),
                ("diverged_at", models.DateTimeField(blank=True, null=True)),
                ("generations", durable.models.rows.JSONTextField(blank=True, default=dict)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("seed", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200)),
                ("began_at", models.DateTimeField(blank=True, null=True)),
                ("head_start", models.IntegerField(blank=True, null=True)),
                ("start_tag", models.DateTimeField(blank=True, null=True)),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="children",
                        to="durable.run",
                    ),
                ),
                (
                    "replay_of",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="replays",
                        to="durable.run",
                    ),
                ),
                ("carried", durable.models.rows.SafeTextField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "ordering": ["-created_at", "-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("wake_at__isnull", False), models.Q(("state", "paused"), _negated=True)),
                        fields=["queue", "wake_at", "id"],
                        name="durable_run_due",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("head_start__isnull", False),
                            ("wake_at__isnull", False),
                            models.Q(("state", "paused"), _negated=True),
                        ),
                        fields=["queue", "head_start", "start_tag", "wake_at", "id"],
                        name="durable_run_ranked",
                    ),
                    models.Index(
                        condition=models.Q(("lease_expires_at__isnull", False)),
                        fields=["lease_expires_at"],
                        name="durable_run_leased",
                    ),
                    models.Index(fields=["created_at", "id"], name="durable_run_newest"),
                    models.Index(fields=["state", "created_at", "id"], name="durable_run_by_state"),
                    models.Index(fields=["workflow", "created_at", "id"], name="durable_run_by_workflow"),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["state", "workflow", "finished_at", "id"],
                        name="durable_run_ended",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["finished_at"],
                        name="durable_run_finished",
                    ),
                    models.Index(
                        condition=models.Q(("diverged_at__isnull", False)),
                        fields=["diverged_at"],
                        name="durable_run_diverged",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)), fields=["parent"], name="durable_run_children"
                    ),
                    models.Index(
                        condition=models.Q(("replay_of__isnull", False)),
                        fields=["replay_of"],
                        name="durable_run_replays",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", ""), _negated=True), name="durable_run_has_an_id"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "pending",
                                    "running",
                                    "sleeping",
                                    "paused",
                                    "rolling_back",
                                    "completed",
                                    "failed",
                                    "cancelled",
                                ],
                            )
                        ),
                        name="durable_run_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("pending_request__in", ["", "pause", "cancel", "cancel_rollback"])),
                        name="durable_run_pending_request_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state_after_rollback__in", ["", "cancelled", "completed", "failed"])),
                        name="durable_run_state_after_rollback_is_an_end",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("change_seq__gte", 0), ("crashes__gte", 0), ("fence__gte", 0), ("message_count__gte", 0)
                        ),
                        name="durable_run_counts_from_zero",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state__in", ["cancelled", "completed", "failed"]), _negated=True),
                            models.Q(
                                ("finished_at__isnull", False),
                                ("lease_expires_at__isnull", True),
                                ("wake_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="durable_run_end_is_final",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["cancelled", "completed", "failed"]),
                            ("finished_at__isnull", True),
                            _connector="OR",
                        ),
                        name="durable_run_finished_means_ended",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("parent__isnull", True),
                            models.Q(("parent", models.F("id")), _negated=True),
                            _connector="OR",
                        ),
                        name="durable_run_is_not_its_own_parent",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Cause",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fingerprint", durable.models.rows.NameField(max_length=16, unique=True)),
                ("place", durable.models.rows.NameField(blank=True, max_length=1024)),
                ("error_type", durable.models.rows.NameField(max_length=200)),
                ("pattern", durable.models.rows.SafeTextField(blank=True)),
                ("first_seen_at", models.DateTimeField()),
                ("muted_at", models.DateTimeField(blank=True, null=True)),
                ("muted_by", durable.models.rows.SafeTextField(blank=True, default="")),
                ("note", durable.models.rows.SafeTextField(blank=True, db_default="", default="")),
                ("noted_at", models.DateTimeField(blank=True, null=True)),
                ("noted_by", durable.models.rows.SafeTextField(blank=True, db_default="", default="")),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="ChildGroup",
            fields=[
                ("id", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("generation", models.IntegerField(default=0)),
                ("size", models.IntegerField()),
                ("position", models.BigIntegerField()),
                ("at_once", models.IntegerField(blank=True, null=True)),
                (
                    "on_failure",
                    durable.models.rows.NameField(choices=[("stop", "stop"), ("finish", "finish")], max_length=8),
                ),
                (
                    "when_parent_ends",
                    durable.models.rows.NameField(choices=[("cancel", "cancel"), ("leave", "leave")], max_length=8),
                ),
                (
                    "when_held",
                    durable.models.rows.NameField(
                        choices=[("keep", "keep"), ("free", "free")], db_default="keep", default="keep", max_length=8
                    ),
                ),
                ("is_over", models.BooleanField(default=False)),
                ("is_dropped", models.BooleanField(default=False)),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="child_groups",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["parent", "position"], name="durable_group_of_parent")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("on_failure__in", ["stop", "finish"])),
                        name="durable_group_on_failure_is_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.rows.NameField(max_length=1024)),
                (
                    "kind",
                    durable.models.rows.NameField(
                        choices=[
                            ("step", "step"),
                            ("loop", "loop"),
                            ("sleep", "sleep"),
                            ("message", "message"),
                            ("send", "send"),
                            ("join", "join"),
                            ("race", "race"),
                            ("removed", "removed"),
                            ("version_check", "version check"),
                            ("rollback_checkpoint", "rollback checkpoint"),
                            ("compensate", "compensate"),
                            ("child", "child"),
                            ("map", "map"),
                            ("tag", "tag"),
                            ("link", "link"),
                            ("publish", "publish"),
                        ],
                        max_length=24,
                    ),
                ),
                ("ordinal", models.BigIntegerField()),
                ("output", durable.models.rows.SafeTextField(blank=True, null=True)),
                ("arguments", durable.models.rows.SafeTextField(blank=True, null=True)),
                ("data", durable.models.rows.JSONTextField(blank=True, default=dict)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="entries",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "entries",
                "constraints": [
                    models.UniqueConstraint(fields=("run", "location"), name="durable_entry_once_per_location"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "kind__in",
                                [
                                    "step",
                                    "loop",
                                    "sleep",
                                    "message",
                                    "send",
                                    "join",
                                    "race",
                                    "removed",
                                    "version_check",
                                    "rollback_checkpoint",
                                    "compensate",
                                    "child",
                                    "map",
                                    "tag",
                                    "link",
                                    "publish",
                                ],
                            )
                        ),
                        name="durable_entry_kind_is_known",
                    ),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("kind", "publish")),
                        fields=["run", "ordinal"],
                        name="durable_entry_published",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("name", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
                ("at_once", models.IntegerField()),
                ("override", models.IntegerField(blank=True, null=True)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="MovedName",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("old", durable.models.rows.NameField(max_length=500)),
                ("new", durable.models.rows.NameField(max_length=500)),
                ("recorded_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="RateLimit",
            fields=[
                ("name", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
                ("rate", durable.models.rows.NameField(max_length=200)),
                ("spacing", models.BigIntegerField()),
                ("burst", models.IntegerField(default=1)),
                ("override_rate", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200)),
                ("override_spacing", models.BigIntegerField(db_default=0, default=0)),
                ("override_burst", models.IntegerField(db_default=0, default=0)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RenamedStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("workflow", durable.models.rows.NameField(max_length=200)),
                ("old", durable.models.rows.NameField(max_length=1024)),
                ("new", durable.models.rows.NameField(max_length=1024)),
                ("recorded_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="RetentionProgress",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("until", models.DateTimeField()),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RollupProgress",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("until", models.DateTimeField()),
                ("asked_at", models.DateTimeField(blank=True, null=True)),
                ("asked_xid", models.BigIntegerField(default=0)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="AlertState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", durable.models.rows.NameField(max_length=300, unique=True)),
                ("kind", durable.models.rows.NameField(max_length=32)),
                ("title", durable.models.rows.SafeTextField(blank=True)),
                ("number", models.IntegerField(default=1)),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)), fields=["kind", "id"], name="durable_alert_open"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Build",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=200, unique=True)),
                ("first_seen_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["first_seen_at"], name="durable_build_by_time")],
            },
        ),
        migrations.CreateModel(
            name="Cascade",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="cascade",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("began_at", models.DateTimeField()),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RunLimit",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="limit",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("deadline", models.DateTimeField(blank=True, null=True)),
                ("length", models.FloatField(blank=True, null=True)),
                ("work_limit", models.FloatField(blank=True, null=True)),
                ("worked", models.FloatField(default=0.0)),
                ("in_doubt", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RunRank",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="ranking",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("priority", durable.models.rows.NameField(blank=True, max_length=200)),
                ("head_start", models.IntegerField()),
                ("share", durable.models.rows.NameField(blank=True, max_length=200)),
                ("weight", models.FloatField()),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("number", models.IntegerField()),
                ("worker", durable.models.rows.SafeTextField(blank=True, default="")),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("error", durable.models.rows.ErrorField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [models.Index(fields=["run", "location"], name="durable_attempt_of_entry")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("number__gte", 0)), name="durable_attempt_number_from_zero"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("attempt", models.IntegerField()),
                (
                    "kind",
                    durable.models.rows.NameField(choices=[("step", "step"), ("rollback", "rollback")], max_length=16),
                ),
                ("fence", models.BigIntegerField()),
                ("worker", durable.models.rows.SafeTextField(blank=True, default="")),
                ("began_at", models.DateTimeField()),
                ("timeout", models.FloatField()),
                ("stack_asked_at", models.DateTimeField(blank=True, null=True)),
                ("stack_taken_at", models.DateTimeField(blank=True, null=True)),
                ("stack", durable.models.rows.SafeTextField(blank=True, default="")),
                ("abandon_asked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="activities",
                        to="durable.run",
                    ),
                ),
                ("summary", durable.models.rows.SafeTextField(blank=True, db_default="", default="")),
            ],
            options={
                "verbose_name_plural": "activities",
                "indexes": [models.Index(fields=["began_at", "id"], name="durable_activity_oldest")],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "location"), name="durable_activity_once_per_location"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["step", "rollback"])), name="durable_activity_kind_is_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CauseBuild",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("build", durable.models.rows.NameField(max_length=200)),
                ("first_seen_at", models.DateTimeField()),
                (
                    "cause",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="builds",
                        to="durable.cause",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["cause", "first_seen_at"], name="durable_causebuild_by_time")],
                "constraints": [models.UniqueConstraint(fields=("cause", "build"), name="durable_causebuild_once")],
            },
        ),
        migrations.CreateModel(
            name="GroupTally",
            fields=[
                (
                    "group",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="tally",
                        serialize=False,
                        to="durable.childgroup",
                    ),
                ),
                ("created", models.IntegerField(default=0)),
                ("waiting", models.IntegerField(default=0)),
                ("running", models.IntegerField(default=0)),
                ("completed", models.IntegerField(default=0)),
                ("failed", models.IntegerField(default=0)),
                ("cancelled", models.IntegerField(default=0)),
                ("is_stopped", models.BooleanField(default=False)),
                ("turns_from", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name_plural": "group tallies",
            },
        ),
        migrations.CreateModel(
            name="ChildReader",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "child",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="readers",
                        to="durable.run",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="children_to_read",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("child", "run"), name="durable_childreader_once")],
            },
        ),
        migrations.CreateModel(
            name="EntryMetadata",
            fields=[
                (
                    "entry",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="metadata",
                        serialize=False,
                        to="durable.entry",
                    ),
                ),
                (
                    "status",
                    durable.models.rows.NameField(
                        choices=[
                            ("pending", "pending"),
                            ("running", "running"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("exhausted", "exhausted"),
                            ("unknown", "unknown"),
                            ("held", "held"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("attempts", models.IntegerField(default=0)),
                ("error", durable.models.rows.ErrorField(blank=True, null=True)),
                ("created_at", models.DateTimeField()),
                ("last_attempt_at", models.DateTimeField(blank=True, null=True)),
                ("next_attempt_at", models.DateTimeField(blank=True, null=True)),
                ("completed_at", models.DateTimeField(blank=True, null=True)),
                ("finished_ordinal", models.BigIntegerField(blank=True, null=True)),
                ("rollback_completed_at", models.DateTimeField(blank=True, null=True)),
                ("rollback_error", durable.models.rows.ErrorField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "entry metadata",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("attempts__gte", 0)), name="durable_metadata_attempts_from_zero"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["pending", "running", "completed", "failed", "exhausted", "unknown", "held"],
                            )
                        ),
                        name="durable_metadata_status_is_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Hold",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    durable.models.rows.NameField(
                        choices=[("queue", "queue"), ("workflow", "workflow")], max_length=16
                    ),
                ),
                ("name", durable.models.rows.NameField(max_length=200)),
                ("held_at", models.DateTimeField()),
                ("held_by", durable.models.rows.SafeTextField(blank=True, default="")),
                ("reason", durable.models.rows.SafeTextField(blank=True, default="")),
                ("summary", durable.models.rows.SummaryField(blank=True, default="")),
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
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("owner", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(max_length=255)),
                ("fingerprint", durable.models.rows.NameField(max_length=64)),
                ("claim", durable.models.rows.NameField(max_length=36)),
                ("status", models.IntegerField(default=0)),
                ("body", durable.models.rows.SafeTextField(blank=True, default="")),
                ("headers", durable.models.rows.JSONTextField(blank=True, default=dict)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="durable_key_oldest")],
                "constraints": [models.UniqueConstraint(fields=("owner", "key"), name="durable_key_once_per_owner")],
            },
        ),
        migrations.CreateModel(
            name="KeyedSend",
            fields=[
                ("message_id", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
                ("input", durable.models.rows.SafeTextField(blank=True, null=True)),
                ("was_first", models.BooleanField(default=False)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="keyed_sends",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", durable.models.rows.NameField(max_length=200)),
                ("head_start", models.IntegerField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("queue", "head_start"), name="durable_lane_once")],
            },
        ),
        migrations.CreateModel(
            name="LimitKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(blank=True, max_length=200)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("limit", "key"), name="durable_limitkey_once")],
            },
        ),
        migrations.CreateModel(
            name="LogLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("level", models.SmallIntegerField()),
                ("logger", durable.models.rows.NameField(blank=True, max_length=200)),
                ("location", durable.models.rows.NameField(blank=True, default="", max_length=1024)),
                ("text", durable.models.rows.SafeTextField(blank=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="log_lines",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "indexes": [models.Index(fields=["run", "id"], name="durable_log_of_run")],
            },
        ),
        migrations.CreateModel(
            name="OperatorAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("actor_label", durable.models.rows.SafeTextField(blank=True, default="")),
                (
                    "source",
                    durable.models.rows.NameField(
                        choices=[("admin", "admin"), ("api", "API"), ("cli", "command line"), ("code", "code")],
                        max_length=16,
                        verbose_name="source",
                    ),
                ),
                ("action", durable.models.rows.NameField(max_length=64)),
                ("run_id", durable.models.rows.NameField(blank=True, default="", max_length=200, verbose_name="run")),
                ("reason", durable.models.rows.SafeTextField(blank=True, default="", verbose_name="reason")),
                ("before", durable.models.rows.SafeTextField(blank=True, default="")),
                ("after", durable.models.rows.SafeTextField(blank=True, default="")),
                ("outcome", durable.models.rows.NameField(max_length=64)),
                (
                    "detail",
                    durable.models.rows.SafeTextField(blank=True, db_default="", default="", verbose_name="detail"),
                ),
                ("created_at", models.DateTimeField()),
                (
                    "bulk_id",
                    durable.models.rows.NameField(
                        blank=True, db_default="", default="", max_length=200, verbose_name="bulk"
                    ),
                ),
                ("subject_kind", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=16)),
                ("subject", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200)),
                ("number", models.IntegerField(db_default=0, default=0)),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "operator action",
                "verbose_name_plural": "operator actions",
                "ordering": ["-created_at", "-id"],
                "indexes": [
                    models.Index(fields=["run_id", "created_at", "id"], name="durable_action_by_run"),
                    models.Index(fields=["created_at", "id"], name="durable_action_newest"),
                    models.Index(fields=["actor", "created_at", "id"], name="durable_action_by_actor"),
                    models.Index(
                        condition=models.Q(("bulk_id", "")), fields=["created_at", "id"], name="durable_action_top"
                    ),
                    models.Index(
                        condition=models.Q(("bulk_id", ""), _negated=True),
                        fields=["bulk_id", "outcome", "id"],
                        name="durable_action_of_bulk",
                    ),
                    models.Index(
                        condition=models.Q(("action", "worker_died")),
                        fields=["actor_label", "created_at"],
                        name="durable_action_of_death",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("source__in", ["admin", "api", "cli", "code"])),
                        name="durable_action_source_is_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueMessage",
            fields=[
                ("id", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
                ("queue", durable.models.rows.QueueField(max_length=768)),
                ("body", durable.models.rows.SafeTextField()),
                ("sent_at", models.DateTimeField()),
                ("order", models.BigIntegerField()),
                (
                    "state",
                    durable.models.rows.NameField(
                        choices=[
                            ("pending", "pending"),
                            ("received", "received"),
                            ("completed", "completed"),
                            ("refused", "refused"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("received_by", durable.models.rows.NameField(blank=True, default="", max_length=1024)),
                ("response", durable.models.rows.SafeTextField(blank=True, null=True)),
                ("idempotency_id", durable.models.rows.NameField(blank=True, max_length=400, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="inbox",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "ordering": ["run", "order"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "pending")),
                        fields=["run", "order"],
                        name="durable_message_pending",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "order"), name="durable_message_once_per_order"),
                    models.UniqueConstraint(fields=("run", "idempotency_id"), name="durable_message_once_per_id"),
                    models.CheckConstraint(condition=models.Q(("order__gt", 0)), name="durable_message_order_from_one"),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["pending", "received", "completed", "refused"])),
                        name="durable_message_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("received_by", ""), ("state", "pending")),
                            models.Q(
                                models.Q(("state", "pending"), _negated=True),
                                models.Q(("received_by", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="durable_message_received_by_a_wait",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RateKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(blank=True, max_length=200)),
                ("reserved", models.BigIntegerField(db_default=0, default=0)),
                ("begun", models.BigIntegerField(db_default=0, default=0)),
                ("put_off", models.BigIntegerField(db_default=0, default=0)),
                ("closed_until", models.DateTimeField(blank=True, null=True)),
                ("closed_by", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=210)),
                ("closed_why", models.TextField(blank=True, db_default="", default="")),
                ("recent", models.CharField(blank=True, db_default="", default="", max_length=200)),
                ("refused", models.BigIntegerField(db_default=0, default=0)),
                ("refused_at", models.DateTimeField(blank=True, null=True)),
                (
                    "refused_workflow",
                    durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200),
                ),
                ("refused_run", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("refused_at__isnull", False)),
                        fields=["refused_run"],
                        name="durable_ratekey_refused",
                    ),
                    models.Index(
                        condition=models.Q(("closed_until__isnull", False)),
                        fields=["limit"],
                        name="durable_ratekey_closed",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("limit", "key"), name="durable_ratekey_once")],
            },
        ),
        migrations.CreateModel(
            name="RenamedName",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    durable.models.rows.NameField(
                        choices=[("workflow", "workflow"), ("queue", "queue")], max_length=16
                    ),
                ),
                ("old", durable.models.rows.NameField(max_length=200)),
                ("new", durable.models.rows.NameField(max_length=200)),
                ("recorded_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "old", "new"), name="durable_renamedname_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.rows.NameField(blank=True, max_length=1024)),
                ("limit", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(blank=True, max_length=200)),
                ("units", models.IntegerField()),
                ("at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["limit", "key", "at"], name="durable_reservation_in_order")],
                "constraints": [models.UniqueConstraint(fields=("run", "location"), name="durable_reservation_once")],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("workflow", durable.models.rows.NameField(blank=True, default="", max_length=200)),
                ("width", models.IntegerField()),
                ("begins", models.DateTimeField()),
                ("completed", models.IntegerField(default=0)),
                ("failed", models.IntegerField(default=0)),
                ("cancelled", models.IntegerField(default=0)),
                ("durations", durable.models.rows.JSONTextField(default=dict)),
            ],
            options={
                "indexes": [models.Index(fields=["width", "begins"], name="durable_rollup_by_time")],
                "constraints": [
                    models.UniqueConstraint(fields=("workflow", "width", "begins"), name="durable_rollup_is_one")
                ],
            },
        ),
        migrations.CreateModel(
            name="RunTag",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=200)),
                ("value", durable.models.rows.NameField(max_length=1000)),
                ("start_value", durable.models.rows.NameField(blank=True, max_length=1000, null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tags",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["name", "value", "created_at", "run"], name="durable_runtag_newest")],
                "constraints": [models.UniqueConstraint(fields=("run", "name"), name="durable_runtag_once_per_name")],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=80)),
                ("query", durable.models.rows.SafeTextField(blank=True)),
                ("owner_key", durable.models.rows.NameField(max_length=200)),
                ("owner_label", durable.models.rows.SafeTextField(blank=True)),
                ("is_shared", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "permissions": [("share_savedview", "Can share saved views of the list, and delete shared ones")],
                "default_permissions": (),
                "indexes": [
                    models.Index(condition=models.Q(("is_shared", True)), fields=["name"], name="durable_view_shared")
                ],
                "constraints": [models.UniqueConstraint(fields=("owner_key", "name"), name="durable_view_has_a_name")],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=200, unique=True)),
                ("workflow", durable.models.rows.NameField(max_length=200)),
                ("queue", durable.models.rows.NameField(blank=True, default="", max_length=200)),
                ("input", durable.models.rows.SafeTextField(blank=True, default="")),
                ("rule", durable.models.rows.SafeTextField()),
                ("zone", durable.models.rows.NameField(default="UTC", max_length=100)),
                ("override_rule", durable.models.rows.SafeTextField(blank=True, default="")),
                ("override_zone", durable.models.rows.NameField(blank=True, default="", max_length=100)),
                (
                    "overlap",
                    durable.models.rows.NameField(
                        choices=[("skip", "skip"), ("queue", "queue"), ("allow", "allow"), ("replace", "replace")],
                        default="skip",
                        max_length=16,
                    ),
                ),
                (
                    "catch_up",
                    durable.models.rows.NameField(
                        choices=[("last", "last"), ("none", "none"), ("all", "all")], default="last", max_length=16
                    ),
                ),
                ("window", models.DurationField(blank=True, null=True)),
                ("jitter", models.DurationField(blank=True, default=datetime.timedelta(0))),
                (
                    "origin",
                    durable.models.rows.NameField(
                        choices=[("code", "code"), ("admin", "admin")], default="admin", max_length=16
                    ),
                ),
                ("paused", models.BooleanField(default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", durable.models.rows.SafeTextField(blank=True, default="")),
                ("pause_reason", durable.models.rows.SafeTextField(blank=True, default="")),
                ("gone_at", models.DateTimeField(blank=True, null=True)),
                ("next_at", models.DateTimeField(blank=True, null=True)),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("waiting_at", models.DateTimeField(blank=True, null=True)),
                ("waiting_number", models.BigIntegerField(blank=True, null=True)),
                ("last_at", models.DateTimeField(blank=True, null=True)),
                ("last_run_id", durable.models.rows.NameField(blank=True, default="", max_length=200)),
                ("open_runs", durable.models.rows.JSONTextField(blank=True, default=list)),
                ("tick_count", models.BigIntegerField(default=0)),
                ("changes", models.BigIntegerField(default=0)),
                ("created_at", models.DateTimeField(blank=True, null=True)),
                ("carried", durable.models.rows.SafeTextField(blank=True, null=True)),
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
            name="Share",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", durable.models.rows.NameField(max_length=200)),
                ("share", durable.models.rows.NameField(blank=True, max_length=200)),
                ("tag", models.DateTimeField(blank=True, null=True)),
                ("round", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("queue", "share"), name="durable_share_once")],
            },
        ),
        migrations.CreateModel(
            name="Slot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.rows.NameField(blank=True, max_length=1024)),
                ("limit", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(blank=True, max_length=200)),
                (
                    "kind",
                    durable.models.rows.NameField(
                        choices=[("running", "running"), ("open", "open"), ("step", "step")], max_length=8
                    ),
                ),
                ("is_held", models.BooleanField()),
                ("place", models.BigIntegerField(default=0)),
                ("since", models.DateTimeField()),
                ("wants", durable.models.rows.JSONTextField(default=list)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="slots",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["run", "location"], name="durable_slot_of_run"),
                    models.Index(fields=["limit", "key", "is_held", "place"], name="durable_slot_in_line"),
                    models.Index(fields=["limit", "is_held", "since"], name="durable_slot_age"),
                ],
            },
        ),
        migrations.CreateModel(
            name="SlotNote",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(blank=True, max_length=200)),
                ("run_id", durable.models.rows.NameField(max_length=200)),
            ],
            options={
                "indexes": [models.Index(fields=["run_id"], name="durable_slotnote_of_run")],
            },
        ),
        migrations.CreateModel(
            name="StepSave",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("generation", models.IntegerField(default=0)),
                ("fence", models.BigIntegerField()),
                ("attempt", models.IntegerField()),
                ("number", models.BigIntegerField()),
                ("details", durable.models.rows.SafeTextField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="saves",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("run", "location"), name="durable_stepsave_once_per_location")
                ],
            },
        ),
        migrations.CreateModel(
            name="Tick",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.BigIntegerField()),
                ("moment", models.DateTimeField()),
                ("kind", durable.models.rows.NameField(default="tick", max_length=16)),
                (
                    "outcome",
                    durable.models.rows.NameField(
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
                ("run_id", durable.models.rows.NameField(blank=True, default="", max_length=200)),
                ("why", durable.models.rows.SafeTextField(blank=True, default="")),
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
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=300, unique=True)),
                ("host", durable.models.rows.SafeTextField(blank=True)),
                ("pid", models.BigIntegerField()),
                ("queues", durable.models.rows.JSONTextField(default=list)),
                ("serves_all", models.BooleanField(default=False)),
                ("slots", models.IntegerField()),
                ("build", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200)),
                (
                    "state",
                    durable.models.rows.NameField(
                        choices=[("serving", "serving"), ("stopping", "stopping")], default="serving", max_length=16
                    ),
                ),
                ("memory", models.BigIntegerField(blank=True, null=True)),
                ("passes", models.BigIntegerField(blank=True, null=True)),
                ("recent_passes", models.IntegerField(blank=True, null=True)),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["last_seen_at"], name="durable_worker_seen")],
            },
        ),
        migrations.CreateModel(
            name="Child",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="child_of",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("generation", models.IntegerField(default=0)),
                (
                    "when_parent_ends",
                    durable.models.rows.NameField(choices=[("cancel", "cancel"), ("leave", "leave")], max_length=8),
                ),
                ("group", durable.models.rows.NameField(blank=True, max_length=1024, null=True)),
                ("position", models.BigIntegerField()),
                ("is_dropped", models.BooleanField(default=False)),
                ("member_of", durable.models.rows.NameField(blank=True, max_length=200, null=True)),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="child_rows",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "children",
                "indexes": [models.Index(fields=["parent", "position"], name="durable_child_of_parent")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("when_parent_ends__in", ["cancel", "leave"])),
                        name="durable_child_when_parent_ends_is_known",
                    )
                ],
            },
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
                ("workflow", durable.models.rows.NameField(max_length=200)),
                ("queue", durable.models.rows.NameField(max_length=200)),
                ("worker", durable.models.rows.SafeTextField(blank=True, default="")),
                ("failed_at", models.DateTimeField()),
                ("run_created_at", models.DateTimeField()),
                ("is_open", models.BooleanField(default=True)),
                ("build", durable.models.rows.NameField(blank=True, db_default="", default="", max_length=200)),
                (
                    "cause",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="failures",
                        to="durable.cause",
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="failures_of_children",
                        to="durable.run",
                    ),
                ),
                ("is_held", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_open", True), ("parent__isnull", True)),
                        fields=["run_created_at", "run"],
                        name="durable_failure_open_roots",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)),
                        fields=["parent"],
                        name="durable_failure_of_parent",
                    ),
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
                    models.Index(fields=["cause", "failed_at"], include=("workflow",), name="durable_failure_by_time"),
                    models.Index(
                        condition=models.Q(("is_held", True)),
                        fields=["run_created_at", "run"],
                        name="durable_failure_held",
                    ),
                ],
            },
        ),
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
                ("workflow", durable.models.rows.NameField(max_length=200)),
                ("due_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["workflow", "run"], name="durable_heldstart_by_workflow")],
            },
        ),
        migrations.CreateModel(
            name="HistoryCount",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="history_count",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("noted_at", models.DateTimeField(blank=True, null=True)),
                ("counted_as", durable.models.rows.NameField(blank=True, default="", max_length=100)),
                ("counts", durable.models.rows.SafeTextField(blank=True, default="")),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("noted_at__isnull", False)),
                        fields=["noted_at"],
                        name="durable_historycount_noted",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RunKey",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="key",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("workflow", durable.models.rows.NameField(max_length=200)),
                ("key", durable.models.rows.NameField(max_length=200)),
                ("is_open", models.BooleanField(default=True, null=True)),
                ("taken_at", models.DateTimeField()),
                ("moves", models.IntegerField(default=0)),
                ("moved_at", models.DateTimeField(blank=True, null=True)),
                ("follows", durable.models.rows.NameField(blank=True, max_length=200, null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("follows__isnull", False)),
                        fields=["follows"],
                        name="durable_runkey_of_the_next",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("workflow", "key", "is_open"), name="durable_runkey_one_open_run"),
                    models.CheckConstraint(
                        condition=models.Q(("is_open", False), _negated=True), name="durable_runkey_is_open_or_null"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Turn",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="turn",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("position", models.BigIntegerField()),
                ("due_at", models.DateTimeField()),
                (
                    "group",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="turns",
                        to="durable.childgroup",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["group", "position"], name="durable_turn_in_order")],
            },
        ),
        migrations.CreateModel(
            name="WorkflowEnd",
            fields=[
                ("workflow", durable.models.rows.NameField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="DatabaseMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=32)),
                ("generation", models.BigIntegerField(default=1)),
                ("counter", models.BigIntegerField(default=0)),
                ("token", models.CharField(max_length=16)),
                ("written_at", models.DateTimeField()),
                ("mark_at", models.DateTimeField(blank=True, null=True)),
                ("holding_since", models.DateTimeField(blank=True, null=True)),
                ("went_back_from", models.DateTimeField(blank=True, null=True)),
                ("went_back_to", models.DateTimeField(blank=True, null=True)),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                ("in_doubt_since", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RunStatus",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="shown",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("fence", models.BigIntegerField()),
                ("number", models.BigIntegerField()),
                ("text", durable.models.rows.SafeTextField()),
                ("done", models.FloatField(blank=True, null=True)),
                ("of", models.FloatField(blank=True, null=True)),
                ("eta", models.DateTimeField(blank=True, null=True)),
                ("at", models.DateTimeField()),
            ],
            options={
                "verbose_name_plural": "run statuses",
            },
        ),
        migrations.CreateModel(
            name="RunSubject",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("model", durable.models.rows.NameField(max_length=255)),
                ("object_pk", durable.models.rows.NameField(max_length=1000)),
                ("cancels", models.BooleanField(db_default=False, default=False)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subjects",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["model", "object_pk", "created_at", "run"], name="durable_runsubject_newest"),
                    models.Index(
                        condition=models.Q(("cancels", True)),
                        fields=["model", "object_pk"],
                        name="durable_runsubject_cancels",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "model", "object_pk"), name="durable_runsubject_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Link",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("token_hash", models.CharField(max_length=64, unique=True)),
                ("link_id", models.CharField(max_length=16)),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("queue", durable.models.rows.QueueField(max_length=768)),
                ("generation", models.IntegerField(default=0)),
                ("verify", durable.models.rows.SafeTextField(blank=True, default="")),
                ("opened_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                ("message_id", durable.models.rows.NameField(blank=True, default="", max_length=200)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="links",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "abstract": False,
                "indexes": [models.Index(fields=["run", "opened_at"], name="durable_link_of_run")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("used_at__isnull", False)),
                        fields=("run", "link_id"),
                        name="durable_link_used_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EventKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=128)),
                ("key", durable.models.rows.NameField(max_length=200)),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("name", "key"), name="durable_eventkey_once")],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=128)),
                ("key", durable.models.rows.NameField(max_length=200)),
                ("event_id", durable.models.rows.NameField(max_length=200)),
                ("body", durable.models.rows.SafeTextField()),
                ("published_at", models.DateTimeField()),
                ("delivered", models.IntegerField(default=0)),
                ("is_open", models.BooleanField(default=True)),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["name", "key", "id"], name="durable_event_of_key"),
                    models.Index(fields=["published_at"], name="durable_event_oldest"),
                    models.Index(condition=models.Q(("is_open", True)), fields=["id"], name="durable_event_open"),
                ],
                "constraints": [models.UniqueConstraint(fields=("name", "event_id"), name="durable_event_once")],
            },
        ),
        migrations.CreateModel(
            name="EventWait",
            fields=[
                ("id", durable.models.rows.NameField(max_length=64, primary_key=True, serialize=False)),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("queue", durable.models.rows.QueueField(max_length=768)),
                ("name", durable.models.rows.NameField(max_length=128)),
                ("key", durable.models.rows.NameField(max_length=200)),
                ("after", models.BigIntegerField()),
                ("since", models.DateTimeField(blank=True, null=True)),
                ("seen", models.BigIntegerField(default=0)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="event_waits",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["name", "key", "after"], name="durable_eventwait_of_key"),
                    models.Index(fields=["run"], name="durable_eventwait_of_run"),
                ],
            },
        ),
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
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("next_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                ("outcome", durable.models.rows.NameField(blank=True, default="", max_length=16)),
                ("barred", durable.models.rows.SafeTextField(blank=True, db_default="", default="")),
                (
                    "claimed",
                    durable.models.rows.NameField(blank=True, db_default="", default="", max_length=1500),
                ),
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
        RoomForUpdates("RunStatus", percent=30),
    ]
