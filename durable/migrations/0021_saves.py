"""What steps have saved of their progress: a side table."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    """Create the table."""

    dependencies = [("durable", "0020_child_entries")]

    operations = [
        migrations.CreateModel(
            name="StepSave",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.fields.NameField(max_length=1024)),
                ("generation", models.IntegerField(default=0)),
                ("fence", models.BigIntegerField()),
                ("attempt", models.IntegerField()),
                ("number", models.BigIntegerField()),
                ("details", durable.models.fields.SafeTextField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="saves",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("run", "location"), name="durable_stepsave_once_per_location")
                ],
            },
        ),
    ]
