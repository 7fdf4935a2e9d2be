"""Limits, the slots of runs, and what is noted about them."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0022_child_readers"),
    ]

    operations = [
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("name", durable.models.fields.NameField(max_length=200, primary_key=True, serialize=False)),
                ("at_once", models.IntegerField()),
                ("override", models.IntegerField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="LimitKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(blank=True, max_length=200)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("limit", "key"), name="durable_limitkey_once")],
            },
        ),
        migrations.CreateModel(
            name="SlotNote",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(blank=True, max_length=200)),
                ("run_id", durable.models.fields.NameField(max_length=200)),
            ],
            options={
                "indexes": [models.Index(fields=["run_id"], name="durable_slotnote_of_run")],
            },
        ),
        migrations.CreateModel(
            name="Slot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.fields.NameField(blank=True, max_length=1024)),
                ("limit", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(blank=True, max_length=200)),
                (
                    "kind",
                    durable.models.fields.NameField(
                        choices=[("running", "running"), ("open", "open"), ("step", "step")], max_length=8
                    ),
                ),
                ("is_held", models.BooleanField()),
                ("place", models.BigIntegerField(default=0)),
                ("since", models.DateTimeField()),
                ("wants", durable.models.fields.JSONTextField(default=list)),
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
                ],
            },
        ),
        CreateRoutines(
            [
                "durable_lock_limit_1",
                "durable_tell_of_slot_1",
                "durable_hand_on_1",
                "durable_line_1",
                "durable_acquire_1",
                "durable_change_slots_1",
                "durable_sweep_slots_1",
            ]
        ),
    ]
