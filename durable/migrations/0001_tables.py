"""The tables."""

from __future__ import annotations

import datetime
from typing import Any

from django.conf import settings
from django.core.management import CommandError
from django.db import migrations, router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState, StateApps
from django.db.models import (
    CASCADE,
    SET_NULL,
    BigAutoField,
    BigIntegerField,
    BooleanField,
    CharField,
    CheckConstraint,
    DateTimeField,
    DurationField,
    F,
    FloatField,
    ForeignKey,
    Index,
    IntegerField,
    OneToOneField,
    Q,
    SmallIntegerField,
    TextField,
    UniqueConstraint,
)

from durable.models.operators import set_null_where_the_log_is
from durable.models.rows import ErrorField, JSONTextField, NameField, QueueField, SafeTextField, SummaryField
from durable.store.routines.operations import RoomForUpdates

_ID = ("id", BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
_STATES = ["pending", "running", "sleeping", "paused", "rolling_back", "completed", "failed", "cancelled"]
_KINDS = [
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
]


def _of(table: str, name: str, **given: Any) -> ForeignKey[Any, Any]:
    """Return the reference of a row to its row in `table`, without an index of its own; `name` leads back."""
    return ForeignKey(to=f"durable.{table}", on_delete=CASCADE, related_name=name, db_index=False, **given)


def _beside(table: str, name: str, **given: Any) -> OneToOneField[Any, Any]:
    """Return the primary key of a row that belongs to one row in `table`."""
    given |= {"primary_key": True, "serialize": False}
    return OneToOneField(to=f"durable.{table}", on_delete=CASCADE, related_name=name, **given)


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


class CreateAuditLog(migrations.CreateModel):
    """Create the audit log, whose reference to users is a constraint only where the project has users.

    A router may keep the table of users out of durable's database. The log has no users' keys there, only names.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create the table."""
        actor = to_state.apps.get_model(app_label, self.name)._meta.get_field("actor")
        actor.db_constraint = router.allow_migrate_model(schema_editor.connection.alias, actor.related_model)
        super().database_forwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    """Create all tables, with their indexes and constraints."""

    initial = True
    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.RunPython(refuse_tables_of_before, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", NameField(max_length=200, primary_key=True, serialize=False, verbose_name="id")),
                ("workflow", NameField(max_length=200)),
                ("queue", NameField(max_length=200)),
                ("state", NameField(default="pending", max_length=16)),
                ("input", SafeTextField()),
                ("output", SafeTextField(blank=True, null=True)),
                ("error", ErrorField(blank=True, null=True)),
                ("origins", JSONTextField(blank=True, default=list)),
                ("wake_at", DateTimeField(blank=True, null=True)),
                ("waiting_for", SafeTextField(blank=True, default="")),
                ("summary", SummaryField(blank=True, default="")),
                ("fence", BigIntegerField(default=0)),
                ("lease_expires_at", DateTimeField(blank=True, null=True)),
                ("worker", SafeTextField(blank=True, default="")),
                ("crashes", IntegerField(default=0)),
                ("change_seq", BigIntegerField(default=0)),
                ("message_count", BigIntegerField(default=0)),
                ("pending_request", NameField(blank=True, default="", max_length=16)),
                ("request_reason", SafeTextField(blank=True, default="")),
                ("state_after_rollback", NameField(blank=True, default="", max_length=16)),
                ("diverged_at", DateTimeField(blank=True, null=True)),
                ("generations", JSONTextField(blank=True, default=dict)),
                ("created_at", DateTimeField()),
                ("started_at", DateTimeField(blank=True, null=True)),
                ("finished_at", DateTimeField(blank=True, null=True)),
                ("seed", NameField(blank=True, db_default="", default="", max_length=200)),
                ("began_at", DateTimeField(blank=True, null=True)),
                ("head_start", IntegerField(blank=True, null=True)),
                ("start_tag", DateTimeField(blank=True, null=True)),
                (
                    "parent",
                    ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=SET_NULL,
                        related_name="children",
                        to="durable.run",
                    ),
                ),
                (
                    "replay_of",
                    ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=SET_NULL,
                        related_name="replays",
                        to="durable.run",
                    ),
                ),
                ("carried", SafeTextField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "ordering": ["-created_at", "-id"],
                "indexes": [
                    Index(
                        condition=Q(wake_at__isnull=False) & ~Q(state="paused"),
                        fields=["queue", "wake_at", "id"],
                        name="durable_run_due",
                    ),
                    Index(
                        condition=Q(head_start__isnull=False) & Q(wake_at__isnull=False) & ~Q(state="paused"),
                        fields=["queue", "head_start", "start_tag", "wake_at", "id"],
                        name="durable_run_ranked",
                    ),
                    Index(
                        condition=Q(lease_expires_at__isnull=False),
                        fields=["lease_expires_at"],
                        name="durable_run_leased",
                    ),
                    Index(fields=["created_at", "id"], name="durable_run_newest"),
                    Index(fields=["state", "created_at", "id"], name="durable_run_by_state"),
                    Index(fields=["workflow", "created_at", "id"], name="durable_run_by_workflow"),
                    Index(
                        condition=Q(finished_at__isnull=False),
                        fields=["state", "workflow", "finished_at", "id"],
                        name="durable_run_ended",
                    ),
                    Index(condition=Q(finished_at__isnull=False), fields=["finished_at"], name="durable_run_finished"),
                    Index(condition=Q(diverged_at__isnull=False), fields=["diverged_at"], name="durable_run_diverged"),
                    Index(condition=Q(parent__isnull=False), fields=["parent"], name="durable_run_children"),
                    Index(condition=Q(replay_of__isnull=False), fields=["replay_of"], name="durable_run_replays"),
                ],
                "constraints": [
                    CheckConstraint(condition=~Q(id=""), name="durable_run_has_an_id"),
                    CheckConstraint(condition=Q(state__in=_STATES), name="durable_run_state_is_known"),
                    CheckConstraint(
                        condition=Q(pending_request__in=["", "pause", "cancel", "cancel_rollback"]),
                        name="durable_run_pending_request_is_known",
                    ),
                    CheckConstraint(
                        condition=Q(state_after_rollback__in=["", "cancelled", "completed", "failed"]),
                        name="durable_run_state_after_rollback_is_an_end",
                    ),
                    CheckConstraint(
                        condition=Q(change_seq__gte=0, crashes__gte=0, fence__gte=0, message_count__gte=0),
                        name="durable_run_counts_from_zero",
                    ),
                    CheckConstraint(
                        condition=~Q(state__in=["cancelled", "completed", "failed"])
                        | Q(finished_at__isnull=False, lease_expires_at__isnull=True, wake_at__isnull=True),
                        name="durable_run_end_is_final",
                    ),
                    CheckConstraint(
                        condition=Q(state__in=["cancelled", "completed", "failed"]) | Q(finished_at__isnull=True),
                        name="durable_run_finished_means_ended",
                    ),
                    CheckConstraint(
                        condition=Q(parent__isnull=True) | ~Q(parent=F("id")), name="durable_run_is_not_its_own_parent"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Cause",
            fields=[
                _ID,
                ("fingerprint", NameField(max_length=16, unique=True)),
                ("place", NameField(blank=True, max_length=1024)),
                ("error_type", NameField(max_length=200)),
                ("pattern", SafeTextField(blank=True)),
                ("first_seen_at", DateTimeField()),
                ("muted_at", DateTimeField(blank=True, null=True)),
                ("muted_by", SafeTextField(blank=True, default="")),
                ("note", SafeTextField(blank=True, db_default="", default="")),
                ("noted_at", DateTimeField(blank=True, null=True)),
                ("noted_by", SafeTextField(blank=True, db_default="", default="")),
            ],
        ),
        migrations.CreateModel(
            name="ChildGroup",
            fields=[
                ("id", NameField(max_length=200, primary_key=True, serialize=False)),
                ("location", NameField(max_length=1024)),
                ("generation", IntegerField(default=0)),
                ("size", IntegerField()),
                ("position", BigIntegerField()),
                ("at_once", IntegerField(blank=True, null=True)),
                ("on_failure", NameField(max_length=8)),
                ("when_parent_ends", NameField(max_length=8)),
                ("when_held", NameField(db_default="keep", default="keep", max_length=8)),
                ("is_over", BooleanField(default=False)),
                ("is_dropped", BooleanField(default=False)),
                ("parent", _of("run", "child_groups", db_constraint=False)),
            ],
            options={
                "indexes": [Index(fields=["parent", "position"], name="durable_group_of_parent")],
                "constraints": [
                    CheckConstraint(
                        condition=Q(on_failure__in=["stop", "finish"]), name="durable_group_on_failure_is_known"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Entry",
            fields=[
                _ID,
                ("location", NameField(max_length=1024)),
                ("kind", NameField(max_length=24)),
                ("ordinal", BigIntegerField()),
                ("output", SafeTextField(blank=True, null=True)),
                ("arguments", SafeTextField(blank=True, null=True)),
                ("data", JSONTextField(blank=True, default=dict)),
                ("run", _of("run", "entries")),
            ],
            options={
                "verbose_name_plural": "entries",
                "constraints": [
                    UniqueConstraint(fields=("run", "location"), name="durable_entry_once_per_location"),
                    CheckConstraint(condition=Q(kind__in=_KINDS), name="durable_entry_kind_is_known"),
                ],
                "indexes": [
                    Index(condition=Q(kind="publish"), fields=["run", "ordinal"], name="durable_entry_published")
                ],
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("name", NameField(max_length=200, primary_key=True, serialize=False)),
                ("at_once", IntegerField()),
                ("override", IntegerField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="MovedName",
            fields=[
                _ID,
                ("old", NameField(max_length=500)),
                ("new", NameField(max_length=500)),
                ("recorded_at", DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="RateLimit",
            fields=[
                ("name", NameField(max_length=200, primary_key=True, serialize=False)),
                ("rate", NameField(max_length=200)),
                ("spacing", BigIntegerField()),
                ("burst", IntegerField(default=1)),
                ("override_rate", NameField(blank=True, db_default="", default="", max_length=200)),
                ("override_spacing", BigIntegerField(db_default=0, default=0)),
                ("override_burst", IntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="RenamedStep",
            fields=[
                _ID,
                ("workflow", NameField(max_length=200)),
                ("old", NameField(max_length=1024)),
                ("new", NameField(max_length=1024)),
                ("recorded_at", DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(name="RetentionProgress", fields=[_ID, ("until", DateTimeField())]),
        migrations.CreateModel(
            name="RollupProgress",
            fields=[
                _ID,
                ("until", DateTimeField()),
                ("asked_at", DateTimeField(blank=True, null=True)),
                ("asked_xid", BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="AlertState",
            fields=[
                _ID,
                ("key", NameField(max_length=300, unique=True)),
                ("kind", NameField(max_length=32)),
                ("title", SafeTextField(blank=True)),
                ("number", IntegerField(default=1)),
                ("began_at", DateTimeField()),
                ("ended_at", DateTimeField(blank=True, null=True)),
            ],
            options={
                "indexes": [Index(condition=Q(ended_at__isnull=True), fields=["kind", "id"], name="durable_alert_open")]
            },
        ),
        migrations.CreateModel(
            name="Build",
            fields=[_ID, ("name", NameField(max_length=200, unique=True)), ("first_seen_at", DateTimeField())],
            options={"indexes": [Index(fields=["first_seen_at"], name="durable_build_by_time")]},
        ),
        migrations.CreateModel(
            name="Cascade",
            fields=[("run", _beside("run", "cascade", db_constraint=False)), ("began_at", DateTimeField())],
        ),
        migrations.CreateModel(
            name="RunLimit",
            fields=[
                ("run", _beside("run", "limit")),
                ("deadline", DateTimeField(blank=True, null=True)),
                ("length", FloatField(blank=True, null=True)),
                ("work_limit", FloatField(blank=True, null=True)),
                ("worked", FloatField(default=0.0)),
                ("in_doubt", DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="RunRank",
            fields=[
                ("run", _beside("run", "ranking", db_constraint=False)),
                ("priority", NameField(blank=True, max_length=200)),
                ("head_start", IntegerField()),
                ("share", NameField(blank=True, max_length=200)),
                ("weight", FloatField()),
            ],
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                _ID,
                ("location", NameField(max_length=1024)),
                ("number", IntegerField()),
                ("worker", SafeTextField(blank=True, default="")),
                ("started_at", DateTimeField()),
                ("finished_at", DateTimeField()),
                ("error", ErrorField()),
                ("run", _of("run", "attempts")),
            ],
            options={
                "ordering": ["id"],
                "indexes": [Index(fields=["run", "location"], name="durable_attempt_of_entry")],
                "constraints": [CheckConstraint(condition=Q(number__gte=0), name="durable_attempt_number_from_zero")],
            },
        ),
        migrations.CreateModel(
            name="Activity",
            fields=[
                _ID,
                ("location", NameField(max_length=1024)),
                ("attempt", IntegerField()),
                ("kind", NameField(max_length=16)),
                ("fence", BigIntegerField()),
                ("worker", SafeTextField(blank=True, default="")),
                ("began_at", DateTimeField()),
                ("timeout", FloatField()),
                ("stack_asked_at", DateTimeField(blank=True, null=True)),
                ("stack_taken_at", DateTimeField(blank=True, null=True)),
                ("stack", SafeTextField(blank=True, default="")),
                ("abandon_asked_at", DateTimeField(blank=True, null=True)),
                ("run", _of("run", "activities", db_constraint=False)),
                ("summary", SafeTextField(blank=True, db_default="", default="")),
            ],
            options={
                "verbose_name_plural": "activities",
                "indexes": [Index(fields=["began_at", "id"], name="durable_activity_oldest")],
                "constraints": [
                    UniqueConstraint(fields=("run", "location"), name="durable_activity_once_per_location"),
                    CheckConstraint(condition=Q(kind__in=["step", "rollback"]), name="durable_activity_kind_is_known"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CauseBuild",
            fields=[
                _ID,
                ("build", NameField(max_length=200)),
                ("first_seen_at", DateTimeField()),
                ("cause", _of("cause", "builds")),
            ],
            options={
                "indexes": [Index(fields=["cause", "first_seen_at"], name="durable_causebuild_by_time")],
                "constraints": [UniqueConstraint(fields=("cause", "build"), name="durable_causebuild_once")],
            },
        ),
        migrations.CreateModel(
            name="GroupTally",
            fields=[
                ("group", _beside("childgroup", "tally", db_constraint=False)),
                ("created", IntegerField(default=0)),
                ("waiting", IntegerField(default=0)),
                ("running", IntegerField(default=0)),
                ("completed", IntegerField(default=0)),
                ("failed", IntegerField(default=0)),
                ("cancelled", IntegerField(default=0)),
                ("is_stopped", BooleanField(default=False)),
                ("turns_from", BigIntegerField(default=0)),
            ],
            options={"verbose_name_plural": "group tallies"},
        ),
        migrations.CreateModel(
            name="ChildReader",
            fields=[
                _ID,
                ("child", _of("run", "readers", db_constraint=False)),
                (
                    "run",
                    ForeignKey(
                        db_constraint=False, on_delete=CASCADE, related_name="children_to_read", to="durable.run"
                    ),
                ),
            ],
            options={"constraints": [UniqueConstraint(fields=("child", "run"), name="durable_childreader_once")]},
        ),
        migrations.CreateModel(
            name="EntryMetadata",
            fields=[
                ("entry", _beside("entry", "metadata")),
                ("status", NameField(default="pending", max_length=16)),
                ("attempts", IntegerField(default=0)),
                ("error", ErrorField(blank=True, null=True)),
                ("created_at", DateTimeField()),
                ("last_attempt_at", DateTimeField(blank=True, null=True)),
                ("next_attempt_at", DateTimeField(blank=True, null=True)),
                ("completed_at", DateTimeField(blank=True, null=True)),
                ("finished_ordinal", BigIntegerField(blank=True, null=True)),
                ("rollback_completed_at", DateTimeField(blank=True, null=True)),
                ("rollback_error", ErrorField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "entry metadata",
                "constraints": [
                    CheckConstraint(condition=Q(attempts__gte=0), name="durable_metadata_attempts_from_zero"),
                    CheckConstraint(
                        condition=Q(
                            status__in=["pending", "running", "completed", "failed", "exhausted", "unknown", "held"]
                        ),
                        name="durable_metadata_status_is_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Hold",
            fields=[
                _ID,
                ("kind", NameField(max_length=16)),
                ("name", NameField(max_length=200)),
                ("held_at", DateTimeField()),
                ("held_by", SafeTextField(blank=True, default="")),
                ("reason", SafeTextField(blank=True, default="")),
                ("summary", SummaryField(blank=True, default="")),
            ],
            options={
                "constraints": [
                    UniqueConstraint(fields=("kind", "name"), name="durable_hold_once"),
                    CheckConstraint(condition=Q(kind__in=["queue", "workflow"]), name="durable_hold_kind_is_known"),
                ]
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                _ID,
                ("owner", NameField(max_length=200)),
                ("key", NameField(max_length=255)),
                ("fingerprint", NameField(max_length=64)),
                ("claim", NameField(max_length=36)),
                ("status", IntegerField(default=0)),
                ("body", SafeTextField(blank=True, default="")),
                ("headers", JSONTextField(blank=True, default=dict)),
                ("created_at", DateTimeField()),
            ],
            options={
                "indexes": [Index(fields=["created_at"], name="durable_key_oldest")],
                "constraints": [UniqueConstraint(fields=("owner", "key"), name="durable_key_once_per_owner")],
            },
        ),
        migrations.CreateModel(
            name="KeyedSend",
            fields=[
                ("message_id", NameField(max_length=200, primary_key=True, serialize=False)),
                ("input", SafeTextField(blank=True, null=True)),
                ("was_first", BooleanField(default=False)),
                (
                    "run",
                    ForeignKey(db_constraint=False, on_delete=CASCADE, related_name="keyed_sends", to="durable.run"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[_ID, ("queue", NameField(max_length=200)), ("head_start", IntegerField())],
            options={"constraints": [UniqueConstraint(fields=("queue", "head_start"), name="durable_lane_once")]},
        ),
        migrations.CreateModel(
            name="LimitKey",
            fields=[_ID, ("limit", NameField(max_length=200)), ("key", NameField(blank=True, max_length=200))],
            options={"constraints": [UniqueConstraint(fields=("limit", "key"), name="durable_limitkey_once")]},
        ),
        migrations.CreateModel(
            name="LogLine",
            fields=[
                _ID,
                ("at", DateTimeField()),
                ("level", SmallIntegerField()),
                ("logger", NameField(blank=True, max_length=200)),
                ("location", NameField(blank=True, default="", max_length=1024)),
                ("text", SafeTextField(blank=True)),
                ("run", _of("run", "log_lines", db_constraint=False)),
            ],
            options={"ordering": ["id"], "indexes": [Index(fields=["run", "id"], name="durable_log_of_run")]},
        ),
        CreateAuditLog(
            name="OperatorAction",
            fields=[
                _ID,
                ("actor_label", SafeTextField(blank=True, default="")),
                ("source", NameField(max_length=16, verbose_name="source")),
                ("action", NameField(max_length=64)),
                ("run_id", NameField(blank=True, default="", max_length=200, verbose_name="run")),
                ("reason", SafeTextField(blank=True, default="", verbose_name="reason")),
                ("before", SafeTextField(blank=True, default="")),
                ("after", SafeTextField(blank=True, default="")),
                ("outcome", NameField(max_length=64)),
                ("detail", SafeTextField(blank=True, db_default="", default="", verbose_name="detail")),
                ("created_at", DateTimeField()),
                ("bulk_id", NameField(blank=True, db_default="", default="", max_length=200, verbose_name="bulk")),
                ("subject_kind", NameField(blank=True, db_default="", default="", max_length=16)),
                ("subject", NameField(blank=True, db_default="", default="", max_length=200)),
                ("actor_key", NameField(blank=True, db_default="", default="", max_length=300)),
                ("number", IntegerField(db_default=0, default=0)),
                (
                    "actor",
                    ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=set_null_where_the_log_is,
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
                    Index(fields=["run_id", "created_at", "id"], name="durable_action_by_run"),
                    Index(fields=["created_at", "id"], name="durable_action_newest"),
                    Index(fields=["actor", "created_at", "id"], name="durable_action_by_actor"),
                    Index(condition=Q(bulk_id=""), fields=["created_at", "id"], name="durable_action_top"),
                    Index(condition=~Q(bulk_id=""), fields=["bulk_id", "outcome", "id"], name="durable_action_of_bulk"),
                    Index(
                        condition=Q(action="worker_died"),
                        fields=["actor_label", "created_at"],
                        name="durable_action_of_death",
                    ),
                ],
                "constraints": [
                    CheckConstraint(
                        condition=Q(source__in=["admin", "api", "cli", "code"]), name="durable_action_source_is_known"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueMessage",
            fields=[
                ("id", NameField(max_length=200, primary_key=True, serialize=False)),
                ("queue", QueueField(max_length=768)),
                ("body", SafeTextField()),
                ("sent_at", DateTimeField()),
                ("order", BigIntegerField()),
                ("state", NameField(default="pending", max_length=16)),
                ("received_by", NameField(blank=True, default="", max_length=1024)),
                ("response", SafeTextField(blank=True, null=True)),
                ("idempotency_id", NameField(blank=True, max_length=400, null=True)),
                ("run", _of("run", "inbox")),
            ],
            options={
                "ordering": ["run", "order"],
                "indexes": [
                    Index(condition=Q(state="pending"), fields=["run", "order"], name="durable_message_pending")
                ],
                "constraints": [
                    UniqueConstraint(fields=("run", "order"), name="durable_message_once_per_order"),
                    UniqueConstraint(fields=("run", "idempotency_id"), name="durable_message_once_per_id"),
                    CheckConstraint(condition=Q(order__gt=0), name="durable_message_order_from_one"),
                    CheckConstraint(
                        condition=Q(state__in=["pending", "received", "completed", "refused"]),
                        name="durable_message_state_is_known",
                    ),
                    CheckConstraint(
                        condition=Q(received_by="", state="pending") | ~Q(state="pending") & ~Q(received_by=""),
                        name="durable_message_received_by_a_wait",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RateKey",
            fields=[
                _ID,
                ("limit", NameField(max_length=200)),
                ("key", NameField(blank=True, max_length=200)),
                ("reserved", BigIntegerField(db_default=0, default=0)),
                ("begun", BigIntegerField(db_default=0, default=0)),
                ("put_off", BigIntegerField(db_default=0, default=0)),
                ("closed_until", DateTimeField(blank=True, null=True)),
                ("closed_by", NameField(blank=True, db_default="", default="", max_length=210)),
                ("closed_why", TextField(blank=True, db_default="", default="")),
                ("recent", CharField(blank=True, db_default="", default="", max_length=200)),
                ("refused", BigIntegerField(db_default=0, default=0)),
                ("refused_at", DateTimeField(blank=True, null=True)),
                ("refused_workflow", NameField(blank=True, db_default="", default="", max_length=200)),
                ("refused_run", NameField(blank=True, db_default="", default="", max_length=200)),
            ],
            options={
                "indexes": [
                    Index(
                        condition=Q(refused_at__isnull=False), fields=["refused_run"], name="durable_ratekey_refused"
                    ),
                    Index(condition=Q(closed_until__isnull=False), fields=["limit"], name="durable_ratekey_closed"),
                ],
                "constraints": [UniqueConstraint(fields=("limit", "key"), name="durable_ratekey_once")],
            },
        ),
        migrations.CreateModel(
            name="RenamedName",
            fields=[
                _ID,
                ("kind", NameField(max_length=16)),
                ("old", NameField(max_length=200)),
                ("new", NameField(max_length=200)),
                ("recorded_at", DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "constraints": [UniqueConstraint(fields=("kind", "old", "new"), name="durable_renamedname_once")],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                _ID,
                ("location", NameField(blank=True, max_length=1024)),
                ("limit", NameField(max_length=200)),
                ("key", NameField(blank=True, max_length=200)),
                ("units", IntegerField()),
                ("at", DateTimeField()),
                ("run", _of("run", "+", db_constraint=False)),
            ],
            options={
                "indexes": [Index(fields=["limit", "key", "at"], name="durable_reservation_in_order")],
                "constraints": [UniqueConstraint(fields=("run", "location"), name="durable_reservation_once")],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                _ID,
                ("workflow", NameField(blank=True, default="", max_length=200)),
                ("width", IntegerField()),
                ("begins", DateTimeField()),
                ("completed", IntegerField(default=0)),
                ("failed", IntegerField(default=0)),
                ("cancelled", IntegerField(default=0)),
                ("durations", JSONTextField(default=dict)),
            ],
            options={
                "indexes": [Index(fields=["width", "begins"], name="durable_rollup_by_time")],
                "constraints": [UniqueConstraint(fields=("workflow", "width", "begins"), name="durable_rollup_is_one")],
            },
        ),
        migrations.CreateModel(
            name="RunTag",
            fields=[
                _ID,
                ("name", NameField(max_length=200)),
                ("value", NameField(max_length=1000)),
                ("start_value", NameField(blank=True, max_length=1000, null=True)),
                ("created_at", DateTimeField()),
                ("run", _of("run", "tags", db_constraint=False)),
            ],
            options={
                "indexes": [Index(fields=["name", "value", "created_at", "run"], name="durable_runtag_newest")],
                "constraints": [UniqueConstraint(fields=("run", "name"), name="durable_runtag_once_per_name")],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                _ID,
                ("name", NameField(max_length=80)),
                ("query", SafeTextField(blank=True)),
                ("owner_key", NameField(max_length=200)),
                ("owner_label", SafeTextField(blank=True)),
                ("is_shared", BooleanField(default=False)),
                ("created_at", DateTimeField()),
            ],
            options={
                "permissions": [("share_savedview", "Can share saved views of the list, and delete shared ones")],
                "default_permissions": (),
                "indexes": [Index(condition=Q(is_shared=True), fields=["name"], name="durable_view_shared")],
                "constraints": [UniqueConstraint(fields=("owner_key", "name"), name="durable_view_has_a_name")],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                _ID,
                ("name", NameField(max_length=200, unique=True)),
                ("workflow", NameField(max_length=200)),
                ("queue", NameField(blank=True, default="", max_length=200)),
                ("input", SafeTextField(blank=True, default="")),
                ("rule", SafeTextField()),
                ("zone", NameField(default="UTC", max_length=100)),
                ("override_rule", SafeTextField(blank=True, default="")),
                ("override_zone", NameField(blank=True, default="", max_length=100)),
                ("overlap", NameField(default="skip", max_length=16)),
                ("catch_up", NameField(default="last", max_length=16)),
                ("window", DurationField(blank=True, null=True)),
                ("jitter", DurationField(blank=True, default=datetime.timedelta(0))),
                ("origin", NameField(default="admin", max_length=16)),
                ("paused", BooleanField(default=False)),
                ("paused_at", DateTimeField(blank=True, null=True)),
                ("paused_by", SafeTextField(blank=True, default="")),
                ("pause_reason", SafeTextField(blank=True, default="")),
                ("gone_at", DateTimeField(blank=True, null=True)),
                ("next_at", DateTimeField(blank=True, null=True)),
                ("due_at", DateTimeField(blank=True, null=True)),
                ("waiting_at", DateTimeField(blank=True, null=True)),
                ("waiting_number", BigIntegerField(blank=True, null=True)),
                ("last_at", DateTimeField(blank=True, null=True)),
                ("last_run_id", NameField(blank=True, default="", max_length=200)),
                ("open_runs", JSONTextField(blank=True, default=list)),
                ("tick_count", BigIntegerField(default=0)),
                ("changes", BigIntegerField(default=0)),
                ("created_at", DateTimeField(blank=True, null=True)),
                ("carried", SafeTextField(blank=True, null=True)),
            ],
            options={
                "permissions": [("operate_schedule", "Can pause, resume, run now and backfill schedules")],
                "indexes": [
                    Index(condition=Q(due_at__isnull=False), fields=["due_at"], name="durable_schedule_due"),
                    Index(
                        condition=Q(waiting_at__isnull=False), fields=["waiting_at"], name="durable_schedule_waiting"
                    ),
                    Index(fields=["workflow", "name"], name="durable_schedule_by_workflow"),
                ],
                "constraints": [
                    CheckConstraint(
                        condition=Q(overlap__in=["skip", "queue", "allow", "replace"]),
                        name="durable_schedule_overlap_is_known",
                    ),
                    CheckConstraint(
                        condition=Q(catch_up__in=["last", "none", "all"]), name="durable_schedule_catch_up_is_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Share",
            fields=[
                _ID,
                ("queue", NameField(max_length=200)),
                ("share", NameField(blank=True, max_length=200)),
                ("tag", DateTimeField(blank=True, null=True)),
                ("round", BigIntegerField(default=0)),
            ],
            options={"constraints": [UniqueConstraint(fields=("queue", "share"), name="durable_share_once")]},
        ),
        migrations.CreateModel(
            name="Slot",
            fields=[
                _ID,
                ("location", NameField(blank=True, max_length=1024)),
                ("limit", NameField(max_length=200)),
                ("key", NameField(blank=True, max_length=200)),
                ("kind", NameField(max_length=8)),
                ("is_held", BooleanField()),
                ("place", BigIntegerField(default=0)),
                ("since", DateTimeField()),
                ("wants", JSONTextField(default=list)),
                ("run", _of("run", "slots", db_constraint=False)),
            ],
            options={
                "indexes": [
                    Index(fields=["run", "location"], name="durable_slot_of_run"),
                    Index(fields=["limit", "key", "is_held", "place"], name="durable_slot_in_line"),
                    Index(fields=["limit", "is_held", "since"], name="durable_slot_age"),
                ]
            },
        ),
        migrations.CreateModel(
            name="SlotNote",
            fields=[
                _ID,
                ("limit", NameField(max_length=200)),
                ("key", NameField(blank=True, max_length=200)),
                ("run_id", NameField(max_length=200)),
            ],
            options={"indexes": [Index(fields=["run_id"], name="durable_slotnote_of_run")]},
        ),
        migrations.CreateModel(
            name="StepSave",
            fields=[
                _ID,
                ("location", NameField(max_length=1024)),
                ("generation", IntegerField(default=0)),
                ("fence", BigIntegerField()),
                ("attempt", IntegerField()),
                ("number", BigIntegerField()),
                ("details", SafeTextField()),
                ("run", _of("run", "saves", db_constraint=False)),
            ],
            options={
                "constraints": [UniqueConstraint(fields=("run", "location"), name="durable_stepsave_once_per_location")]
            },
        ),
        migrations.CreateModel(
            name="Tick",
            fields=[
                _ID,
                ("number", BigIntegerField()),
                ("moment", DateTimeField()),
                ("kind", NameField(default="tick", max_length=16)),
                ("outcome", NameField(max_length=16)),
                ("run_id", NameField(blank=True, default="", max_length=200)),
                ("why", SafeTextField(blank=True, default="")),
                ("decided_at", DateTimeField()),
                ("schedule", _of("schedule", "ticks")),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    Index(condition=~Q(run_id=""), fields=["run_id"], name="durable_tick_by_run"),
                    Index(fields=["outcome", "decided_at"], name="durable_tick_by_outcome"),
                ],
                "constraints": [
                    UniqueConstraint(fields=("schedule", "number"), name="durable_tick_once"),
                    CheckConstraint(
                        condition=Q(outcome__in=["started", "waiting", "skipped", "missed", "merged", "refused"]),
                        name="durable_tick_outcome_is_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                _ID,
                ("name", NameField(max_length=300, unique=True)),
                ("host", SafeTextField(blank=True)),
                ("pid", BigIntegerField()),
                ("queues", JSONTextField(default=list)),
                ("serves_all", BooleanField(default=False)),
                ("slots", IntegerField()),
                ("build", NameField(blank=True, db_default="", default="", max_length=200)),
                ("state", NameField(default="serving", max_length=16)),
                ("memory", BigIntegerField(blank=True, null=True)),
                ("passes", BigIntegerField(blank=True, null=True)),
                ("recent_passes", IntegerField(blank=True, null=True)),
                ("started_at", DateTimeField()),
                ("last_seen_at", DateTimeField()),
            ],
            options={"indexes": [Index(fields=["last_seen_at"], name="durable_worker_seen")]},
        ),
        migrations.CreateModel(
            name="Child",
            fields=[
                ("run", _beside("run", "child_of", db_constraint=False)),
                ("location", NameField(max_length=1024)),
                ("generation", IntegerField(default=0)),
                ("when_parent_ends", NameField(max_length=8)),
                ("group", NameField(blank=True, max_length=1024, null=True)),
                ("position", BigIntegerField()),
                ("is_dropped", BooleanField(default=False)),
                ("member_of", NameField(blank=True, max_length=200, null=True)),
                ("parent", _of("run", "child_rows", db_constraint=False)),
            ],
            options={
                "verbose_name_plural": "children",
                "indexes": [Index(fields=["parent", "position"], name="durable_child_of_parent")],
                "constraints": [
                    CheckConstraint(
                        condition=Q(when_parent_ends__in=["cancel", "leave"]),
                        name="durable_child_when_parent_ends_is_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Failure",
            fields=[
                ("run", _beside("run", "failure")),
                ("workflow", NameField(max_length=200)),
                ("queue", NameField(max_length=200)),
                ("worker", SafeTextField(blank=True, default="")),
                ("failed_at", DateTimeField()),
                ("run_created_at", DateTimeField()),
                ("is_open", BooleanField(default=True)),
                ("build", NameField(blank=True, db_default="", default="", max_length=200)),
                ("cause", _of("cause", "failures")),
                (
                    "parent",
                    ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=SET_NULL,
                        related_name="failures_of_children",
                        to="durable.run",
                    ),
                ),
                ("is_held", BooleanField(db_default=False, default=False)),
            ],
            options={
                "indexes": [
                    Index(
                        condition=Q(is_open=True, parent__isnull=True),
                        fields=["run_created_at", "run"],
                        name="durable_failure_open_roots",
                    ),
                    Index(condition=Q(parent__isnull=False), fields=["parent"], name="durable_failure_of_parent"),
                    Index(
                        condition=Q(is_open=True),
                        fields=["cause", "run_created_at", "run"],
                        name="durable_failure_open",
                    ),
                    Index(condition=Q(is_open=True), fields=["cause", "failed_at"], name="durable_failure_open_since"),
                    Index(fields=["cause", "failed_at"], include=("workflow",), name="durable_failure_by_time"),
                    Index(condition=Q(is_held=True), fields=["run_created_at", "run"], name="durable_failure_held"),
                ]
            },
        ),
        migrations.CreateModel(
            name="HeldStart",
            fields=[
                ("run", _beside("run", "held_start")),
                ("workflow", NameField(max_length=200)),
                ("due_at", DateTimeField()),
            ],
            options={"indexes": [Index(fields=["workflow", "run"], name="durable_heldstart_by_workflow")]},
        ),
        migrations.CreateModel(
            name="HistoryCount",
            fields=[
                ("run", _beside("run", "history_count", db_constraint=False)),
                ("noted_at", DateTimeField(blank=True, null=True)),
                ("counted_as", NameField(blank=True, default="", max_length=100)),
                ("counts", SafeTextField(blank=True, default="")),
            ],
            options={
                "indexes": [
                    Index(condition=Q(noted_at__isnull=False), fields=["noted_at"], name="durable_historycount_noted")
                ]
            },
        ),
        migrations.CreateModel(
            name="RunKey",
            fields=[
                ("run", _beside("run", "key", db_constraint=False)),
                ("workflow", NameField(max_length=200)),
                ("key", NameField(max_length=200)),
                ("is_open", BooleanField(default=True, null=True)),
                ("taken_at", DateTimeField()),
                ("moves", IntegerField(default=0)),
                ("moved_at", DateTimeField(blank=True, null=True)),
                ("follows", NameField(blank=True, max_length=200, null=True)),
            ],
            options={
                "indexes": [
                    Index(condition=Q(follows__isnull=False), fields=["follows"], name="durable_runkey_of_the_next")
                ],
                "constraints": [
                    UniqueConstraint(fields=("workflow", "key", "is_open"), name="durable_runkey_one_open_run"),
                    CheckConstraint(condition=~Q(is_open=False), name="durable_runkey_is_open_or_null"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Turn",
            fields=[
                ("run", _beside("run", "turn", db_constraint=False)),
                ("position", BigIntegerField()),
                ("due_at", DateTimeField()),
                ("group", _of("childgroup", "turns", db_constraint=False)),
            ],
            options={"indexes": [Index(fields=["group", "position"], name="durable_turn_in_order")]},
        ),
        migrations.CreateModel(
            name="WorkflowEnd",
            fields=[("workflow", NameField(max_length=200, primary_key=True, serialize=False))],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="DatabaseMark",
            fields=[
                _ID,
                ("name", CharField(max_length=32)),
                ("generation", BigIntegerField(default=1)),
                ("counter", BigIntegerField(default=0)),
                ("token", CharField(max_length=16)),
                ("written_at", DateTimeField()),
                ("mark_at", DateTimeField(blank=True, null=True)),
                ("holding_since", DateTimeField(blank=True, null=True)),
                ("went_back_from", DateTimeField(blank=True, null=True)),
                ("went_back_to", DateTimeField(blank=True, null=True)),
                ("decided_at", DateTimeField(blank=True, null=True)),
                ("in_doubt_since", DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="RunStatus",
            fields=[
                ("run", _beside("run", "shown", db_constraint=False)),
                ("fence", BigIntegerField()),
                ("number", BigIntegerField()),
                ("text", SafeTextField()),
                ("done", FloatField(blank=True, null=True)),
                ("of", FloatField(blank=True, null=True)),
                ("eta", DateTimeField(blank=True, null=True)),
                ("at", DateTimeField()),
            ],
            options={"verbose_name_plural": "run statuses"},
        ),
        migrations.CreateModel(
            name="RunSubject",
            fields=[
                _ID,
                ("model", NameField(max_length=255)),
                ("object_pk", NameField(max_length=1000)),
                ("cancels", BooleanField(db_default=False, default=False)),
                ("created_at", DateTimeField()),
                ("run", _of("run", "subjects", db_constraint=False)),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    Index(fields=["model", "object_pk", "created_at", "run"], name="durable_runsubject_newest"),
                    Index(condition=Q(cancels=True), fields=["model", "object_pk"], name="durable_runsubject_cancels"),
                ],
                "constraints": [UniqueConstraint(fields=("run", "model", "object_pk"), name="durable_runsubject_once")],
            },
        ),
        migrations.CreateModel(
            name="Link",
            fields=[
                _ID,
                ("token_hash", CharField(max_length=64, unique=True)),
                ("link_id", CharField(max_length=16)),
                ("location", NameField(max_length=1024)),
                ("queue", QueueField(max_length=768)),
                ("generation", IntegerField(default=0)),
                ("verify", SafeTextField(blank=True, default="")),
                ("opened_at", DateTimeField()),
                ("expires_at", DateTimeField(blank=True, null=True)),
                ("used_at", DateTimeField(blank=True, null=True)),
                ("closed_at", DateTimeField(blank=True, null=True)),
                ("message_id", NameField(blank=True, default="", max_length=200)),
                ("run", _of("run", "links")),
            ],
            options={
                "abstract": False,
                "indexes": [Index(fields=["run", "opened_at"], name="durable_link_of_run")],
                "constraints": [
                    UniqueConstraint(
                        condition=Q(used_at__isnull=False), fields=("run", "link_id"), name="durable_link_used_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EventKey",
            fields=[_ID, ("name", NameField(max_length=128)), ("key", NameField(max_length=200))],
            options={
                "default_permissions": (),
                "constraints": [UniqueConstraint(fields=("name", "key"), name="durable_eventkey_once")],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                _ID,
                ("name", NameField(max_length=128)),
                ("key", NameField(max_length=200)),
                ("event_id", NameField(max_length=200)),
                ("body", SafeTextField()),
                ("published_at", DateTimeField()),
                ("delivered", IntegerField(default=0)),
                ("is_open", BooleanField(default=True)),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    Index(fields=["name", "key", "id"], name="durable_event_of_key"),
                    Index(fields=["published_at"], name="durable_event_oldest"),
                    Index(condition=Q(is_open=True), fields=["id"], name="durable_event_open"),
                ],
                "constraints": [UniqueConstraint(fields=("name", "event_id"), name="durable_event_once")],
            },
        ),
        migrations.CreateModel(
            name="EventWait",
            fields=[
                ("id", NameField(max_length=64, primary_key=True, serialize=False)),
                ("location", NameField(max_length=1024)),
                ("queue", QueueField(max_length=768)),
                ("name", NameField(max_length=128)),
                ("key", NameField(max_length=200)),
                ("after", BigIntegerField()),
                ("since", DateTimeField(blank=True, null=True)),
                ("seen", BigIntegerField(default=0)),
                ("run", _of("run", "event_waits")),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    Index(fields=["name", "key", "after"], name="durable_eventwait_of_key"),
                    Index(fields=["run"], name="durable_eventwait_of_run"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Question",
            fields=[
                _ID,
                ("question_id", CharField(max_length=32, unique=True)),
                ("location", NameField(max_length=1024)),
                ("queue", QueueField(max_length=768)),
                ("form", SafeTextField(blank=True, default="")),
                ("permission", NameField(blank=True, default="", max_length=255)),
                ("assignee", NameField(blank=True, default="", max_length=1500)),
                ("about", SafeTextField(blank=True, default="")),
                ("nonce", CharField(max_length=64)),
                ("asked_at", DateTimeField()),
                ("expires_at", DateTimeField(blank=True, null=True)),
                ("next_at", DateTimeField(blank=True, null=True)),
                ("closed_at", DateTimeField(blank=True, null=True)),
                ("outcome", NameField(blank=True, default="", max_length=16)),
                ("barred", SafeTextField(blank=True, db_default="", default="")),
                ("claimed", NameField(blank=True, db_default="", default="", max_length=1500)),
                ("details", SafeTextField()),
                ("run", _of("run", "questions")),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    Index(fields=["run", "asked_at"], name="durable_question_of_run"),
                    Index(
                        condition=Q(closed_at__isnull=True),
                        fields=["assignee", "permission", "asked_at"],
                        name="durable_question_open",
                    ),
                    Index(
                        condition=Q(closed_at__isnull=True, next_at__isnull=False),
                        fields=["next_at"],
                        name="durable_question_due",
                    ),
                ],
            },
        ),
        RoomForUpdates("RunStatus", percent=30),
    ]
