import django.db.models.deletion
from django.apps import apps
from django.conf import settings
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        # names of permissions have more than the 50 characters that its first migration allows
        *([("auth", "0002_alter_permission_name_max_length")] if apps.is_installed("django.contrib.auth") else []),
    ]

    operations = [
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("owner", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(max_length=255)),
                ("fingerprint", durable.models.fields.NameField(max_length=64)),
                ("claim", durable.models.fields.NameField(max_length=36)),
                ("status", models.IntegerField(default=0)),
                ("body", durable.models.fields.SafeTextField(blank=True, default="")),
                ("headers", durable.models.fields.JSONTextField(blank=True, default=dict)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="durable_key_oldest")],
                "constraints": [models.UniqueConstraint(fields=("owner", "key"), name="durable_key_once_per_owner")],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    durable.models.fields.NameField(
                        max_length=200, primary_key=True, serialize=False, verbose_name="id"
                    ),
                ),
                ("workflow", durable.models.fields.NameField(max_length=200)),
                ("queue", durable.models.fields.NameField(max_length=200)),
                (
                    "state",
                    durable.models.fields.NameField(
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
                ("input", durable.models.fields.SafeTextField()),
                ("output", durable.models.fields.SafeTextField(blank=True, null=True)),
                ("error", durable.models.fields.ErrorField(blank=True, null=True)),
                ("origins", durable.models.fields.JSONTextField(blank=True, default=list)),
                ("wake_at", models.DateTimeField(blank=True, null=True)),
                ("waiting_for", durable.models.fields.SafeTextField(blank=True, default="")),
                ("summary", durable.models.fields.SummaryField(blank=True, default="")),
                ("fence", models.BigIntegerField(default=0)),
                ("lease_expires_at", models.DateTimeField(blank=True, null=True)),
                ("worker", durable.models.fields.SafeTextField(blank=True, default="")),
                ("crashes", models.IntegerField(default=0)),
                ("change_seq", models.BigIntegerField(default=0)),
                ("message_count", models.BigIntegerField(default=0)),
                (
                    "pending_request",
                    durable.models.fields.NameField(
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
                ("request_reason", durable.models.fields.SafeTextField(blank=True, default="")),
                ("state_after_rollback", durable.models.fields.NameField(blank=True, default="", max_length=16)),
                ("diverged_at", models.DateTimeField(blank=True, null=True)),
                ("generations", durable.models.fields.JSONTextField(blank=True, default=dict)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("seed", durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200)),
                ("began_at", models.DateTimeField(blank=True, null=True)),
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
            ],
            options={
                "ordering": ["-created_at", "-id"],
                "permissions": [
                    ("view_payload", "Can view inputs, outputs, messages and tracebacks"),
                    ("start_run", "Can start runs"),
                    ("operate_run", "Can send to, wake, pause, resume, cancel and recover runs"),
                    ("replay_run", "Can replay runs"),
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueMessage",
            fields=[
                ("id", durable.models.fields.NameField(max_length=200, primary_key=True, serialize=False)),
                ("queue", durable.models.fields.QueueField(max_length=768)),
                ("body", durable.models.fields.SafeTextField()),
                ("sent_at", models.DateTimeField()),
                ("order", models.BigIntegerField()),
                (
                    "state",
                    durable.models.fields.NameField(
                        choices=[("pending", "pending"), ("received", "received"), ("completed", "completed")],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("received_by", durable.models.fields.NameField(blank=True, default="", max_length=1024)),
                ("response", durable.models.fields.SafeTextField(blank=True, null=True)),
                ("idempotency_id", durable.models.fields.NameField(blank=True, max_length=400, null=True)),
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
            },
        ),
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.fields.NameField(max_length=1024)),
                (
                    "kind",
                    durable.models.fields.NameField(
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
                        ],
                        max_length=24,
                    ),
                ),
                ("ordinal", models.BigIntegerField()),
                ("output", durable.models.fields.SafeTextField(blank=True, null=True)),
                ("arguments", durable.models.fields.SafeTextField(blank=True, null=True)),
                ("data", durable.models.fields.JSONTextField(blank=True, default=dict)),
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
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.fields.NameField(max_length=1024)),
                ("number", models.IntegerField()),
                ("worker", durable.models.fields.SafeTextField(blank=True, default="")),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("error", durable.models.fields.ErrorField()),
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
                    durable.models.fields.NameField(
                        choices=[
                            ("pending", "pending"),
                            ("running", "running"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("exhausted", "exhausted"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("attempts", models.IntegerField(default=0)),
                ("error", durable.models.fields.ErrorField(blank=True, null=True)),
                ("created_at", models.DateTimeField()),
                ("last_attempt_at", models.DateTimeField(blank=True, null=True)),
                ("next_attempt_at", models.DateTimeField(blank=True, null=True)),
                ("completed_at", models.DateTimeField(blank=True, null=True)),
                ("finished_ordinal", models.BigIntegerField(blank=True, null=True)),
                ("rollback_completed_at", models.DateTimeField(blank=True, null=True)),
                ("rollback_error", durable.models.fields.ErrorField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "entry metadata",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["pending", "running", "completed", "failed", "exhausted"])),
                        name="durable_metadata_status_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("attempts__gte", 0)), name="durable_metadata_attempts_from_zero"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OperatorAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("actor_label", durable.models.fields.SafeTextField(blank=True, default="")),
                (
                    "source",
                    durable.models.fields.NameField(
                        choices=[("admin", "admin"), ("api", "API"), ("cli", "command line"), ("code", "code")],
                        max_length=16,
                    ),
                ),
                ("action", durable.models.fields.NameField(max_length=64)),
                ("run_id", durable.models.fields.NameField(blank=True, default="", max_length=200, verbose_name="run")),
                ("reason", durable.models.fields.SafeTextField(blank=True, default="")),
                ("before", durable.models.fields.SafeTextField(blank=True, default="")),
                ("after", durable.models.fields.SafeTextField(blank=True, default="")),
                ("outcome", durable.models.fields.NameField(max_length=64)),
                ("detail", durable.models.fields.SafeTextField(blank=True, db_default="", default="")),
                ("created_at", models.DateTimeField()),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
                "indexes": [
                    models.Index(fields=["run_id", "created_at", "id"], name="durable_action_by_run"),
                    models.Index(fields=["created_at", "id"], name="durable_action_newest"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("source__in", ["admin", "api", "cli", "code"])),
                        name="durable_action_source_is_known",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("wake_at__isnull", False), models.Q(("state", "paused"), _negated=True)),
                fields=["queue", "wake_at", "id"],
                name="durable_run_due",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("lease_expires_at__isnull", False)),
                fields=["lease_expires_at"],
                name="durable_run_leased",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["created_at", "id"], name="durable_run_newest"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["state", "created_at", "id"], name="durable_run_by_state"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["workflow", "created_at", "id"], name="durable_run_by_workflow"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["state", "workflow", "finished_at", "id"],
                name="durable_run_ended",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)), fields=["finished_at"], name="durable_run_finished"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("diverged_at__isnull", False)), fields=["diverged_at"], name="durable_run_diverged"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("parent__isnull", False)), fields=["parent"], name="durable_run_children"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("replay_of__isnull", False)), fields=["replay_of"], name="durable_run_replays"
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("id", ""), _negated=True), name="durable_run_has_an_id"
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("pending_request__in", ["", "pause", "cancel", "cancel_rollback"])),
                name="durable_run_pending_request_is_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("state_after_rollback__in", ["", "cancelled", "completed", "failed"])),
                name="durable_run_state_after_rollback_is_an_end",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("change_seq__gte", 0), ("crashes__gte", 0), ("fence__gte", 0), ("message_count__gte", 0)
                ),
                name="durable_run_counts_from_zero",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state__in", ["cancelled", "completed", "failed"]), _negated=True),
                    models.Q(
                        ("finished_at__isnull", False), ("lease_expires_at__isnull", True), ("wake_at__isnull", True)
                    ),
                    _connector="OR",
                ),
                name="durable_run_end_is_final",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ["cancelled", "completed", "failed"]), ("finished_at__isnull", True), _connector="OR"
                ),
                name="durable_run_finished_means_ended",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("parent__isnull", True), models.Q(("parent", models.F("id")), _negated=True), _connector="OR"
                ),
                name="durable_run_is_not_its_own_parent",
            ),
        ),
        migrations.AddIndex(
            model_name="queuemessage",
            index=models.Index(
                condition=models.Q(("state", "pending")), fields=["run", "order"], name="durable_message_pending"
            ),
        ),
        migrations.AddConstraint(
            model_name="queuemessage",
            constraint=models.UniqueConstraint(fields=("run", "order"), name="durable_message_once_per_order"),
        ),
        migrations.AddConstraint(
            model_name="queuemessage",
            constraint=models.UniqueConstraint(fields=("run", "idempotency_id"), name="durable_message_once_per_id"),
        ),
        migrations.AddConstraint(
            model_name="queuemessage",
            constraint=models.CheckConstraint(
                condition=models.Q(("order__gt", 0)), name="durable_message_order_from_one"
            ),
        ),
        migrations.AddConstraint(
            model_name="queuemessage",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["pending", "received", "completed"])),
                name="durable_message_state_is_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="queuemessage",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("received_by", ""), ("state", "pending")),
                    models.Q(
                        models.Q(("state", "pending"), _negated=True), models.Q(("received_by", ""), _negated=True)
                    ),
                    _connector="OR",
                ),
                name="durable_message_received_by_a_wait",
            ),
        ),
        migrations.AddConstraint(
            model_name="entry",
            constraint=models.UniqueConstraint(fields=("run", "location"), name="durable_entry_once_per_location"),
        ),
        migrations.AddConstraint(
            model_name="entry",
            constraint=models.CheckConstraint(
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
                        ],
                    )
                ),
                name="durable_entry_kind_is_known",
            ),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(fields=["run", "location"], name="durable_attempt_of_entry"),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(("number__gte", 0)), name="durable_attempt_number_from_zero"
            ),
        ),
    ]
