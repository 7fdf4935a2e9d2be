"""The row that says which database this is and how far it has come."""

from __future__ import annotations

from django.db import migrations, models

from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Create the table; the first sweep writes the row."""

    dependencies = [("durable", "0005_on_end")]

    operations = [
        LockTimeout(),
        migrations.CreateModel(
            name="DatabaseMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=32)),
                ("generation", models.BigIntegerField(default=1)),
                ("counter", models.BigIntegerField(default=0)),
                ("token", models.CharField(max_length=16)),
                ("written_at", models.DateTimeField()),
                ("mark_at", models.DateTimeField(blank=True, null=True)),
                ("holding_since", models.DateTimeField(blank=True, null=True)),
                ("went_back_from", models.DateTimeField(blank=True, null=True)),
                ("went_back_to", models.DateTimeField(blank=True, null=True)),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"abstract": False},
        ),
    ]
