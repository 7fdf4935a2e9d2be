"""A side table of tags: names with values, by which runs are found."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0036_history_counts"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunTag",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", durable.models.fields.NameField(max_length=200)),
                ("value", durable.models.fields.TagValueField(max_length=1000)),
                ("start_value", durable.models.fields.TagValueField(blank=True, max_length=1000, null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tags",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["name", "value", "created_at", "run"], name="durable_runtag_newest"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "name"), name="durable_runtag_once_per_name"),
                ],
            },
        ),
    ]
