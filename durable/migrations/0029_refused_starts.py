"""How many starts a key of a rate has refused, and the last one."""

from django.db import migrations, models

import durable.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0028_turns_from"),
    ]

    operations = [
        migrations.AddField(
            model_name="ratekey",
            name="refused",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="ratekey",
            name="refused_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="ratekey",
            name="refused_run",
            field=durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AddField(
            model_name="ratekey",
            name="refused_workflow",
            field=durable.models.fields.NameField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AddIndex(
            model_name="ratekey",
            index=models.Index(
                condition=models.Q(("refused_at__isnull", False)),
                fields=["refused_run"],
                name="durable_ratekey_refused",
            ),
        ),
    ]
