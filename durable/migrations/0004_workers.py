"""Workers, builds, and the build of each failure."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields
from durable.store.routines.operations import CreateRoutines


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0003_causes"),
    ]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="build",
            field=durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.CreateModel(
            name="Build",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.fields.NameField(max_length=200, unique=True)),
                ("first_seen_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["first_seen_at"], name="durable_build_by_time")],
            },
        ),
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.fields.NameField(max_length=300, unique=True)),
                ("host", durable.models.fields.SafeTextField(blank=True)),
                ("pid", models.BigIntegerField()),
                ("queues", durable.models.fields.JSONTextField(default=list)),
                ("serves_all", models.BooleanField(default=False)),
                ("slots", models.IntegerField()),
                ("build", durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200)),
                (
                    "state",
                    durable.models.fields.NameField(
                        choices=[("serving", "serving"), ("stopping", "stopping")], default="serving", max_length=16
                    ),
                ),
                ("memory", models.BigIntegerField(blank=True, null=True)),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["last_seen_at"], name="durable_worker_seen")],
            },
        ),
        migrations.CreateModel(
            name="CauseBuild",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("build", durable.models.fields.NameField(max_length=200)),
                ("first_seen_at", models.DateTimeField()),
                (
                    "cause",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="builds",
                        to="durable.cause",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["cause", "first_seen_at"], name="durable_causebuild_by_time")],
                "constraints": [models.UniqueConstraint(fields=("cause", "build"), name="durable_causebuild_once")],
            },
        ),
        CreateRoutines(["durable_fail_2"]),
    ]
