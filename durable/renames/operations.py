"""The operations of migrations that give recorded operations other names.

Migration files import this module through `durable.migrations`, which Django loads as a package of migrations too: what
needs models is imported when an operation is applied.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from durable.conf import conf
from durable.core.location import MAX_LOCATION
from durable.core.renames import Rename, check_pattern

__all__ = ["RenameStep"]


class RenameStep(Operation):
    """Rename a recorded operation of a workflow, in all its runs: `RenameStep("shop.fulfil", "charge", "charge card")`.

    `old` and `new` are locations as `handle.history()` shows them, which differ in the last name; "~" is any iteration of
    a loop: `RenameStep("shop.crawl", "pages/~/get", "pages/~/fetch")`. Any operation with a name may be renamed, with all
    below it, and no branch of a join or race.

    From then on both names are of one operation in this workflow, so that workers with the old code and with the new one
    may run beside each other. Migrate before the new code runs. The migration depends on ("durable", "0032_renamed_steps"),
    and has `atomic = False` if there are more than 500 runs. It can be interrupted and applied again, and reversed.

    Runs that workers have are tried again for `wait` seconds, then they keep the old name, which goes on to fit.

    Raises TypeError and ValueError for what are no such locations; `RenameRefused` when it is applied, with the run's id,
    if a history has the new name already.
    """

    __module__ = "durable.migrations"  # from where migration files that Django writes import it

    reversible = True
    reduces_to_sql = False

    def __init__(self, workflow: str, old: str, new: str, *, wait: float = 60, elidable: bool = False) -> None:
        if not isinstance(workflow, str) or not workflow:
            raise TypeError(f'the workflow is given by its name, such as "shop.fulfil", not {workflow!r}')
        check_pattern(old, new)
        if len(new) > MAX_LOCATION:
            raise ValueError(f"a location has at most {MAX_LOCATION} characters")
        self.workflow = workflow
        self.old = old
        self.new = new
        self.wait = wait
        self.elidable = elidable  # type: ignore[misc]  # no class variable outside the stubs: Django sets it so too

    @property
    def rename(self) -> Rename:
        """What the operation says."""
        return Rename(self.workflow, self.old, self.new)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the operation as a migration file writes it."""
        options: dict[str, Any] = {}
        if self.wait != 60:
            options["wait"] = self.wait
        if self.elidable:
            options["elidable"] = True
        return type(self).__name__, [self.workflow, self.old, self.new], options

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Rewrite the records of the old name."""
        self._apply(app_label, schema_editor, is_back=False)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Rewrite the records of the new name. Both names stay those of one operation."""
        self._apply(app_label, schema_editor, is_back=True)

    def _apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *, is_back: bool) -> None:
        connection = schema_editor.connection
        if connection.alias != conf.DATABASE:
            return
        from durable.models import RenamedStep
        from durable.renames.checking import RenameRefused
        from durable.renames.rewriting import rename_step

        if RenamedStep._meta.db_table not in connection.introspection.table_names():
            raise RenameRefused(
                f"the migration of {app_label} is applied before durable's own: add "
                '("durable", "0032_renamed_steps") to its dependencies. Nothing was written.'
            )
        rename_step(connection.alias, self.rename, is_back=is_back, wait=self.wait, say=_say)

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f'Rename the recorded operation "{self.old}" of {self.workflow} to "{self.new}"'

    @property
    def migration_name_fragment(self) -> str:
        """Return a part of a migration's name."""
        digest = hashlib.sha256("\0".join(self.rename).encode(errors="surrogatepass")).hexdigest()[:8]
        return f"rename_step_{digest}"


def _say(line: str) -> None:
    sys.stdout.write(f"\n    {line}")
    sys.stdout.flush()
