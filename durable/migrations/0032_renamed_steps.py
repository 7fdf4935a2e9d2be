"""Renamed operations: which locations of a workflow are of one operation."""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0031_ranks"),
    ]

    operations = [
        migrations.CreateModel(
            name="RenamedStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("workflow", durable.models.fields.NameField(max_length=200)),
                ("old", durable.models.fields.NameField(max_length=1024)),
                ("new", durable.models.fields.NameField(max_length=1024)),
                ("recorded_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
    ]
