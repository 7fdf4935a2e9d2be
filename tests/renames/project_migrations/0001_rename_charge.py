"""A migration as a project writes it by hand."""

from django.db import migrations

from durable.migrations import RenameStep


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("durable", "0002_routines")]
    operations = [
        RenameStep("gate.order", "charge", "charge card", wait=3600),
        RenameStep("renames.order", "orders/~/charge", "orders/~/charge card", wait=1),
    ]
