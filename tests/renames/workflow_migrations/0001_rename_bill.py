"""A migration as a project writes it by hand."""

from django.db import migrations

from durable.migrations import RenameWorkflow


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("durable", "0002_routines")]
    operations = [RenameWorkflow("renames.bill", "renames.invoice")]
