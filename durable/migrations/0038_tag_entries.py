"""One more kind of entry: tags that a run has given itself."""

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
    "map",
    "tag",
]


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0037_tags"),
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
        DropRoutines(["durable_entry_guard_3", "durable_guard_3 on durable_entry"]),
        CreateRoutines(["durable_entry_guard_4", "durable_guard_4 on durable_entry"]),
    ]
