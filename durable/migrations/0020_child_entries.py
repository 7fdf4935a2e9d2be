"""Entries of children: one more kind of entry."""

from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines, DropRoutines, OnOtherDatabases

KINDS = [
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
]


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0019_keys"),
    ]

    operations = [
        OnOtherDatabases(migrations.RemoveConstraint(model_name="entry", name="durable_entry_kind_is_known")),
        migrations.AlterField(
            model_name="entry",
            name="kind",
            field=durable.models.fields.NameField(
                choices=[(each, each.replace("_", " ")) for each in KINDS], max_length=24
            ),
        ),
        OnOtherDatabases(
            migrations.AddConstraint(
                model_name="entry",
                constraint=models.CheckConstraint(
                    condition=models.Q(("kind__in", KINDS)), name="durable_entry_kind_is_known"
                ),
            )
        ),
        DropRoutines(["durable_entry_guard_1", "durable_guard on durable_entry"]),
        CreateRoutines(["durable_entry_guard_2", "durable_guard_2 on durable_entry"]),
    ]
