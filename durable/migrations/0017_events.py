"""Events, their keys, and the runs that wait for them."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Create the tables with their indexes."""

    dependencies = [("durable", "0016_carried")]

    operations = [
        LockTimeout(),
        migrations.CreateModel(
            name="EventKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=128)),
                ("key", durable.models.rows.NameField(max_length=200)),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("name", "key"), name="durable_eventkey_once")],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.rows.NameField(max_length=128)),
                ("key", durable.models.rows.NameField(max_length=200)),
                ("event_id", durable.models.rows.NameField(max_length=200)),
                ("body", durable.models.rows.SafeTextField()),
                ("published_at", models.DateTimeField()),
                ("delivered", models.IntegerField(default=0)),
                ("is_open", models.BooleanField(default=True)),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["name", "key", "id"], name="durable_event_of_key"),
                    models.Index(fields=["published_at"], name="durable_event_oldest"),
                    models.Index(condition=models.Q(("is_open", True)), fields=["id"], name="durable_event_open"),
                ],
                "constraints": [models.UniqueConstraint(fields=("name", "event_id"), name="durable_event_once")],
            },
        ),
        migrations.CreateModel(
            name="EventWait",
            fields=[
                ("id", durable.models.rows.NameField(max_length=64, primary_key=True, serialize=False)),
                ("location", durable.models.rows.NameField(max_length=1024)),
                ("queue", durable.models.rows.QueueField(max_length=768)),
                ("name", durable.models.rows.NameField(max_length=128)),
                ("key", durable.models.rows.NameField(max_length=200)),
                ("after", models.BigIntegerField()),
                ("since", durable.models.rows.MomentField(blank=True, null=True)),
                ("seen", models.BigIntegerField(default=0)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="event_waits",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["name", "key", "after"], name="durable_eventwait_of_key"),
                    models.Index(fields=["run"], name="durable_eventwait_of_run"),
                ],
            },
        ),
    ]
