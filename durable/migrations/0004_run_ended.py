"""An index over ended runs by kind and end, along which retention finds what is past its time.

Partial: a run that has not ended is not in it, and no write before a run's end touches it.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("durable", "0003_idempotency_key")]

    operations = [
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["state", "workflow", "finished_at", "id"],
                name="durable_run_ended",
            ),
        ),
    ]
