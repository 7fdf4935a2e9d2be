"""On PostgreSQL: the tables of runs and entries in partitions, if the settings say so and they are empty."""

from __future__ import annotations

from django.db import migrations

from durable.store.partitions.layout import Partition
from durable.store.routines.operations import LockTimeout


class Migration(migrations.Migration):
    """Partition new tables."""

    dependencies = [("durable", "0003_permissions")]

    operations = [LockTimeout(), Partition()]
