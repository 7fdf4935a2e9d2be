"""A side table of what was counted of long histories."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0035_worker_passes"),
    ]

    operations = [
        migrations.CreateModel(
            name="HistoryCount",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="history_count",
                        serialize=False,
                        to="durable.run",
                    ),
                ),
                ("noted_at", models.DateTimeField(blank=True, null=True)),
                ("counted_as", durable.models.fields.NameField(blank=True, default="", max_length=100)),
                ("counts", durable.models.fields.SafeTextField(blank=True, default="")),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("noted_at__isnull", False)),
                        fields=["noted_at"],
                        name="durable_historycount_noted",
                    )
                ],
            },
        ),
    ]
