"""Maps: groups of children with their counts, whose turn it is, and one more kind of entry."""

import django.db.models.deletion
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
]


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0023_slots"),
    ]

    operations = [
        migrations.CreateModel(
            name="ChildGroup",
            fields=[
                ("id", durable.models.fields.NameField(max_length=200, primary_key=True, serialize=False)),
                ("location", durable.models.fields.NameField(max_length=1024)),
                ("generation", models.IntegerField(default=0)),
                ("size", models.IntegerField()),
                ("position", models.BigIntegerField()),
                ("at_once", models.IntegerField(blank=True, null=True)),
                (
                    "on_failure",
                    durable.models.fields.NameField(choices=[("stop", "stop"), ("finish", "finish")], max_length=8),
                ),
                (
                    "when_parent_ends",
                    durable.models.fields.NameField(choices=[("cancel", "cancel"), ("leave", "leave")], max_length=8),
                ),
                ("is_over", models.BooleanField(default=False)),
                ("is_dropped", models.BooleanField(default=False)),
            ],
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
            ],
        ),
        OnOtherDatabases(migrations.RemoveConstraint(model_name="entry", name="durable_entry_kind_is_known")),
        migrations.AddField(
            model_name="child",
            name="member_of",
            field=durable.models.fields.NameField(blank=True, max_length=200, null=True),
        ),
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
            ],
            options={
                "verbose_name_plural": "group tallies",
            },
        ),
        migrations.AddField(
            model_name="childgroup",
            name="parent",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="child_groups",
                to="durable.run",
            ),
        ),
        migrations.AddField(
            model_name="turn",
            name="group",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="turns",
                to="durable.childgroup",
            ),
        ),
        migrations.AddIndex(
            model_name="childgroup",
            index=models.Index(fields=["parent", "position"], name="durable_group_of_parent"),
        ),
        migrations.AddConstraint(
            model_name="childgroup",
            constraint=models.CheckConstraint(
                condition=models.Q(("on_failure__in", ["stop", "finish"])), name="durable_group_on_failure_is_known"
            ),
        ),
        migrations.AddIndex(
            model_name="turn",
            index=models.Index(fields=["group", "position"], name="durable_turn_in_order"),
        ),
        DropRoutines(["durable_entry_guard_2", "durable_guard_2 on durable_entry"]),
        CreateRoutines(
            [
                "durable_entry_guard_3",
                "durable_guard_3 on durable_entry",
                "durable_member_ended_1",
                "durable_member_gone_1",
                "durable_member_gone on durable_child",
            ]
        ),
    ]
