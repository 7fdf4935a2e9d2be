"""The table of answers to requests that may come twice."""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [("durable", "0002_flush")]

    operations = [
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("owner", durable.models.fields.NameField(max_length=200)),
                ("key", durable.models.fields.NameField(max_length=255)),
                ("fingerprint", durable.models.fields.NameField(max_length=64)),
                ("claim", durable.models.fields.NameField(max_length=36)),
                ("status", models.IntegerField(default=0)),
                ("body", durable.models.fields.SafeTextField(blank=True, default="")),
                ("headers", durable.models.fields.JSONTextField(blank=True, default=dict)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="durable_key_oldest")],
                "constraints": [models.UniqueConstraint(fields=("owner", "key"), name="durable_key_once_per_owner")],
            },
        ),
    ]
