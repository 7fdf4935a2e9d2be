"""Keys: at most one open run of a workflow has one."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0018_limits"),
    ]

    operations = [
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
                ("workflow", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(max_length=200)),
                ("is_open", models.BooleanField(default=True, null=True)),
                ("taken_at", models.DateTimeField()),
                ("moves", models.IntegerField(default=0)),
                ("moved_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("workflow", "key", "is_open"), name="durable_runkey_one_open_run"),
                    models.CheckConstraint(
                        condition=models.Q(("is_open", False), _negated=True), name="durable_runkey_is_open_or_null"
                    ),
                ],
            },
        ),
        CreateRoutines(["durable_start_keyed_1"]),
    ]
