"""What runs are about: instances of the project's models."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import durable.models.rows
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Create the table with its indexes."""

    dependencies = [("durable", "0011_in_doubt")]

    operations = [
        LockTimeout(),
        migrations.CreateModel(
            name="RunSubject",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("model", durable.models.rows.NameField(max_length=255)),
                ("object_pk", durable.models.rows.NameField(max_length=1000)),
                ("cancels", models.BooleanField(db_default=False, default=False)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subjects",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["model", "object_pk", "created_at", "run"], name="durable_runsubject_newest"),
                    models.Index(
                        condition=models.Q(("cancels", True)),
                        fields=["model", "object_pk"],
                        name="durable_runsubject_cancels",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "model", "object_pk"), name="durable_runsubject_once")
                ],
            },
        ),
    ]
