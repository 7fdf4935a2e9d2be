"""Activities: the steps that run now."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0005_bulks"),
    ]

    operations = [
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("location", durable.models.fields.NameField(max_length=1024)),
                ("attempt", models.IntegerField()),
                (
                    "kind",
                    durable.models.fields.NameField(
                        choices=[("step", "step"), ("rollback", "rollback")], max_length=16
                    ),
                ),
                ("fence", models.BigIntegerField()),
                ("worker", durable.models.fields.SafeTextField(blank=True, default="")),
                ("began_at", models.DateTimeField()),
                ("timeout", models.FloatField()),
                ("stack_asked_at", models.DateTimeField(blank=True, null=True)),
                ("stack_taken_at", models.DateTimeField(blank=True, null=True)),
                ("stack", durable.models.fields.SafeTextField(blank=True, default="")),
                ("abandon_asked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="activities",
                        to="durable.run",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "activities",
                "indexes": [models.Index(fields=["began_at", "id"], name="durable_activity_oldest")],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "location"), name="durable_activity_once_per_location"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["step", "rollback"])), name="durable_activity_kind_is_known"
                    ),
                ],
            },
        ),
    ]
