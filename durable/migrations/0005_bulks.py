"""Bulks in the audit log: the rows of a bulk, and the log by person."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0004_workers"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="operatoraction",
            name="bulk_id",
            field=durable.models.fields.NameField(
                blank=True, db_default="", default="", max_length=200, verbose_name="bulk"
            ),
        ),
        migrations.AlterField(
            model_name="operatoraction",
            name="actor",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddIndex(
            model_name="operatoraction",
            index=models.Index(fields=["actor", "created_at", "id"], name="durable_action_by_actor"),
        ),
        migrations.AddIndex(
            model_name="operatoraction",
            index=models.Index(
                condition=models.Q(("bulk_id", "")), fields=["created_at", "id"], name="durable_action_top"
            ),
        ),
        migrations.AddIndex(
            model_name="operatoraction",
            index=models.Index(
                condition=models.Q(("bulk_id", ""), _negated=True),
                fields=["bulk_id", "outcome", "id"],
                name="durable_action_of_bulk",
            ),
        ),
    ]
