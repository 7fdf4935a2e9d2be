"""Rates of limits, what is taken of each key, and the attempts that wait for their moments."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0026_failed_roots"),
    ]

    operations = [
        migrations.CreateModel(
            name="RateLimit",
            fields=[
                ("name", durable.models.fields.NameField(max_length=200, primary_key=True, serialize=False)),
                ("rate", durable.models.fields.NameField(max_length=200)),
                ("spacing", models.BigIntegerField()),
                ("burst", models.IntegerField(default=1)),
                (
                    "override_rate",
                    durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200),
                ),
                ("override_spacing", models.BigIntegerField(db_default=0, default=0)),
                ("override_burst", models.IntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="RateKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(blank=True, max_length=200)),
                ("reserved", models.BigIntegerField(db_default=0, default=0)),
                ("begun", models.BigIntegerField(db_default=0, default=0)),
                ("put_off", models.BigIntegerField(db_default=0, default=0)),
                ("closed_until", models.DateTimeField(blank=True, null=True)),
                ("closed_by", durable.models.fields.NameField(blank=True, db_default="", default="", max_length=210)),
                ("closed_why", models.TextField(blank=True, db_default="", default="")),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("limit", "key"), name="durable_ratekey_once")],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.fields.NameField(blank=True, max_length=1024)),
                ("limit", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(blank=True, max_length=200)),
                ("units", models.IntegerField()),
                ("at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["limit", "key", "at"], name="durable_reservation_in_order")],
                "constraints": [models.UniqueConstraint(fields=("run", "location"), name="durable_reservation_once")],
            },
        ),
        CreateRoutines(["durable_reserve_1"]),
    ]
