"""Moved classes and rollback handlers: which import paths are of one class or function."""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0033_renamed_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="MovedName",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("old", durable.models.fields.NameField(max_length=500)),
                ("new", durable.models.fields.NameField(max_length=500)),
                ("recorded_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
    ]
