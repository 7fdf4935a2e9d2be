"""The index of the values that a run has published: a history of 100,000 entries is not searched for them."""

from __future__ import annotations

from django.db import migrations, models

from durable.store.routines.operations import AddIndexConcurrently


class Migration(migrations.Migration):
    """Create the index without a lock."""

    atomic = False

    dependencies = [("durable", "0014_published_values")]

    operations = [
        AddIndexConcurrently(
            model_name="entry",
            index=models.Index(
                condition=models.Q(("kind", "publish")), fields=["run", "ordinal"], name="durable_entry_published"
            ),
        ),
    ]
