"""Indexes for what operators look at: what ended in the last hour and day, and runs that no code at hand fits.

Both are partial. A run enters the first once, when it ends, and the second only while it diverges: no commit of a run under
way pays for them.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("durable", "0005_audit_and_replay")]

    operations = [
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)), fields=["finished_at"], name="durable_run_finished"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("diverged_at__isnull", False)), fields=["diverged_at"], name="durable_run_diverged"
            ),
        ),
    ]
