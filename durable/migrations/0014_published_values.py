"""Values that runs publish: a kind of entry."""

from __future__ import annotations

from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout, OnOtherDatabases

_KINDS = [
    *("step", "loop", "sleep", "message", "send", "join", "race", "removed", "version_check", "rollback_checkpoint"),
    *("compensate", "child", "map", "tag", "link", "publish"),
]


class Migration(migrations.Migration):
    """Let other databases than PostgreSQL know the kind; there a guard does."""

    dependencies = [("durable", "0013_links")]

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
    ]
