"""The limits of runs that were started with some: a side table."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table."""

    dependencies = [("durable", "0017_schedules")]

    operations = [
        migrations.CreateModel(
            name="RunLimit",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="limit",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("deadline", models.DateTimeField(blank=True, null=True)),
                ("length", models.FloatField(blank=True, null=True)),
                ("work_limit", models.FloatField(blank=True, null=True)),
                ("worked", models.FloatField(default=0.0)),
            ],
        ),
    ]
