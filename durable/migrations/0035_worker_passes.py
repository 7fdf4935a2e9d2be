"""The throughput of a worker: how many passes it has executed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("durable", "0034_moved_names"),
    ]

    operations = [
        migrations.AddField(
            model_name="workerprocess",
            name="passes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="workerprocess",
            name="recent_passes",
            field=models.IntegerField(blank=True, null=True),
        ),
    ]
