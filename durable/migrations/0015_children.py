"""Children of runs, and on PostgreSQL the one function that every end of a run calls."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0014_refused_messages"),
    ]

    operations = [
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
                ("location", durable.models.fields.NameField(max_length=1024)),
                ("generation", models.IntegerField(default=0)),
                (
                    "when_parent_ends",
                    durable.models.fields.NameField(choices=[("cancel", "cancel"), ("leave", "leave")], max_length=8),
                ),
                ("group", durable.models.fields.NameField(blank=True, max_length=1024, null=True)),
                ("position", models.BigIntegerField()),
                ("is_dropped", models.BooleanField(default=False)),
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
        CreateRoutines(
            [
                "durable_wake_parent_1",
                "durable_complete_2",
                "durable_end_children_1",
                "durable_drop_children_1",
                "durable_cascade_1",
                "durable_commit_2",
                "durable_ended_1",
                "durable_ended on durable_run",
                "durable_ended_by_deletion on durable_run",
            ]
        ),
    ]
