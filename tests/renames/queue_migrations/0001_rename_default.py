"""A migration as a project writes it by hand."""

from django.db import migrations

from durable.migrations import RenameQueue


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("durable", "0002_routines")]
    operations = [RenameQueue("default", "orders")]
