"""Replays that may read children of their originals: a side table."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table."""

    dependencies = [("durable", "0021_saves")]

    operations = [
        migrations.CreateModel(
            name="ChildReader",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "child",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="readers",
                        to="durable.run",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="children_to_read",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("child", "run"), name="durable_childreader_once")],
            },
        ),
    ]
