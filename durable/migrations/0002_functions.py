"""On PostgreSQL: the functions that write runs, and the guards in place of constraints.

`durable.store.routines` has the texts.
"""

from django.core.management import CommandError
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import StateApps

from durable.store.routines.operations import CreateRoutines, DropGuardedConstraints


def refuse_tables_of_before(_apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Stop where the tables were made before the first release, by migrations of other names."""
    connection = schema_editor.connection
    if ("durable", "0002_flush") not in MigrationRecorder(connection).applied_migrations():
        return
    raise CommandError(
        f'The database "{connection.alias}" has tables that an earlier checkout of durable made, before its first '
        "release. Their columns have other names, and no migration changes them. Delete the database, create it again "
        "and run `manage.py migrate`. To keep the other apps' tables, drop only the tables and functions whose names "
        "begin with durable_, and delete the rows of the app durable from django_migrations before "
        "`manage.py migrate`."
    )


class Migration(migrations.Migration):
    dependencies = [("durable", "0001_initial")]

    operations = [
        migrations.RunPython(refuse_tables_of_before, migrations.RunPython.noop),
        CreateRoutines(
            [
                "durable_start_1",
                "durable_claim_2",
                "durable_witness_1",
                "durable_flush_1",
                "durable_record_1",
                "durable_send_1",
                "durable_sends_1",
                "durable_commit_1",
                "durable_complete_1",
                "durable_run_guard_1",
                "durable_entry_guard_1",
                "durable_metadata_guard_1",
                "durable_run_gone_1",
                "durable_entry_gone_1",
                "durable_run_renamed_1",
                "durable_guard on durable_run",
                "durable_guard on durable_entry",
                "durable_guard on durable_entrymetadata",
                "durable_gone on durable_run",
                "durable_emptied on durable_run",
                "durable_gone on durable_entry",
                "durable_emptied on durable_entry",
                "durable_renamed on durable_run",
            ]
        ),
        DropGuardedConstraints(),
    ]
