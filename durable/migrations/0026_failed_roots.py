"""The parents of failed children, so that failed roots have an index of their own."""

from __future__ import annotations

from typing import Any

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Exists, OuterRef, Subquery


def _note_parents(apps: Any, schema_editor: Any) -> None:
    """Note the parents of the children that have failed."""
    alias = schema_editor.connection.alias
    children = apps.get_model("durable", "Child").objects.using(alias).filter(run=OuterRef("pk"))
    failures = apps.get_model("durable", "Failure").objects.using(alias)
    failures.filter(Exists(children)).update(parent_id=Subquery(children.values("parent_id")[:1]))


class Migration(migrations.Migration):
    """Add the column, fill it, and make the indexes."""

    dependencies = [("durable", "0025_slot_age")]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="parent",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="failures_of_children",
                to="durable.run",
            ),
        ),
        migrations.RunPython(_note_parents, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="failure",
            index=models.Index(
                condition=models.Q(("is_open", True), ("parent__isnull", True)),
                fields=["run_created_at", "run"],
                name="durable_failure_open_roots",
            ),
        ),
        migrations.AddIndex(
            model_name="failure",
            index=models.Index(
                condition=models.Q(("parent__isnull", False)), fields=["parent"], name="durable_failure_of_parent"
            ),
        ),
    ]
