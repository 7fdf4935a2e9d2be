"""Renamed workflows: which names are of one workflow."""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0032_renamed_steps"),
    ]

    operations = [
        migrations.CreateModel(
            name="RenamedName",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    durable.models.fields.NameField(
                        choices=[("workflow", "workflow"), ("queue", "queue")], max_length=16
                    ),
                ),
                ("old", durable.models.fields.NameField(max_length=200)),
                ("new", durable.models.fields.NameField(max_length=200)),
                ("recorded_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "old", "new"), name="durable_renamedname_once")
                ],
            },
        ),
    ]
