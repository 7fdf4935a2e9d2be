"""Links, and the kind of their entries."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout, OnOtherDatabases

_KINDS = [
    *("step", "loop", "sleep", "message", "send", "join", "race", "removed", "version_check", "rollback_checkpoint"),
    *("compensate", "child", "map", "tag", "link"),
]


class Migration(migrations.Migration):
    """Create the table, and let other databases than PostgreSQL know the kind; there guards do."""

    dependencies = [("durable", "0012_subjects")]

    operations = [
        LockTimeout(),
        OnOtherDatabases(
            migrations.AlterField(
                model_name="entry",
                name="kind",
                field=durable.models.rows.NameField(
                    choices=[(each, each.replace("_", " ")) for each in _KINDS], max_length=24
                ),
            )
        ),
        OnOtherDatabases(migrations.RemoveConstraint(model_name="entry", name="durable_entry_kind_is_known")),
        OnOtherDatabases(
            migrations.AddConstraint(
                model_name="entry",
                constraint=models.CheckConstraint(
                    condition=models.Q(("kind__in", _KINDS)), name="durable_entry_kind_is_known"
                ),
            )
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
                ("expires_at", durable.models.rows.MomentField(blank=True, null=True)),
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
    ]
