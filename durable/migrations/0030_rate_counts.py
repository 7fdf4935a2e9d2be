"""The units of a key of a rate that have begun in the last minute, and an index of the keys that are closed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0029_refused_starts"),
    ]

    operations = [
        migrations.AddField(
            model_name="ratekey",
            name="recent",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AddIndex(
            model_name="ratekey",
            index=models.Index(
                condition=models.Q(("closed_until__isnull", False)), fields=["limit"], name="durable_ratekey_closed"
            ),
        ),
    ]
