"""Messages of `start_or_send`, and which run has them after the one that had the key."""

import django.db.models.deletion
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0038_tag_entries"),
    ]

    operations = [
        migrations.AddField(
            model_name="runkey",
            name="follows",
            field=durable.models.fields.NameField(blank=True, max_length=200, null=True),
        ),
        migrations.AddIndex(
            model_name="runkey",
            index=models.Index(
                condition=models.Q(("follows__isnull", False)), fields=["follows"], name="durable_runkey_of_the_next"
            ),
        ),
        migrations.CreateModel(
            name="KeyedSend",
            fields=[
                ("message_id", durable.models.fields.NameField(max_length=200, primary_key=True, serialize=False)),
                ("input", durable.models.fields.SafeTextField(blank=True, null=True)),
                ("was_first", models.BooleanField(default=False)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="keyed_sends",
                        to="durable.run",
                    ),
                ),
            ],
        ),
    ]
