"""The migration operations that rename recorded operations, workflows and queues; and the project's unapplied renames.

Migration files import this module through `durable.migrations`, which Django loads as a package of migrations too: what
needs models is imported when an operation is applied. Reading the project's migrations imports the migration modules of
every app, so that a check of many runs does it once.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from durable.conf import conf
from durable.core.ids import MAX_ID, check_queue
from durable.core.location import MAX_LOCATION
from durable.core.names.recorded_names import Move
from durable.core.names.renames import Alias, Aliases, AliasKind, Rename, check_pattern
from durable.core.registry import INTERNAL


class OfRecords(Operation):
    """An operation about recorded names, `names`.

    It does not change models, and can be interrupted, applied again and reversed.
    """

    reversible = True
    reduces_to_sql = False

    #: The table that the operation writes into first.
    table: ClassVar[str]
    fragment: ClassVar[str]

    def __init__(self, *names: str, elidable: bool) -> None:
        self.names = names
        self.elidable = elidable  # type: ignore[misc]  # no class variable outside the stubs: Django sets it so too

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the operation as a migration file writes it."""
        return type(self).__name__, list(self.names), {"elidable": True} if self.elidable else {}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Write into durable's database, which has to have its tables."""
        if schema_editor.connection.alias == conf.DATABASE:
            self._check_table(
                schema_editor.connection,
                f"the migration of {app_label} is applied before durable's own: add "
                '("durable", "0002_routines") to its dependencies.',
            )
            self.apply_to(schema_editor.connection.alias)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *_states: ProjectState
    ) -> None:
        """Take the operation back in durable's database, which has to have its tables."""
        if schema_editor.connection.alias == conf.DATABASE:
            self._check_table(
                schema_editor.connection,
                f"the migration of {app_label} is taken back, and durable's tables are not there: apply durable's "
                "migrations first (`manage.py migrate durable`). If they were taken back before this one, add "
                '("durable", "0002_routines") to its dependencies.',
            )
            self.take_back(schema_editor.connection.alias)

    def _check_table(self, connection: BaseDatabaseWrapper, problem: str) -> None:
        if self.table not in connection.introspection.table_names():
            from durable.renames.rewriting import RenameRefused

            raise RenameRefused(f"{problem} Nothing was written.")

    def apply_to(self, alias: str) -> None:
        """Do the operation in this database."""
        raise NotImplementedError

    def take_back(self, alias: str) -> None:
        """Undo the operation in this database, as far as it can be."""
        raise NotImplementedError

    @property
    def migration_name_fragment(self) -> str:
        """Return a part of a migration's name."""
        digest = hashlib.sha256("\0".join(self.names).encode(errors="surrogatepass")).hexdigest()[:8]
        return f"{self.fragment}_{digest}"


class _Renaming(OfRecords):
    """A rename of recorded things. Both names continue to stand for one thing if it is reversed."""

    table = "durable_renamedname"

    def __init__(self, *names: str, wait: float, elidable: bool) -> None:
        super().__init__(*names, elidable=elidable)
        self.wait = wait

    @property
    def renames(self) -> list[Rename | Alias]:
        raise NotImplementedError

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the operation as a migration file writes it."""
        name, args, options = super().deconstruct()
        return name, args, ({"wait": self.wait} if self.wait != 60 else {}) | options

    def apply_to(self, alias: str) -> None:
        self._rewrite(alias, is_back=False)

    def take_back(self, alias: str) -> None:
        self._rewrite(alias, is_back=True)

    def _rewrite(self, alias: str, *, is_back: bool) -> None:
        raise NotImplementedError


class RenameStep(_Renaming):
    """Rename a recorded operation of a workflow, in all its runs: `RenameStep("shop.fulfil", "charge", "charge card")`.

    `old` and `new` are locations as `handle.history()` shows them, which differ in the last name; "~" is any iteration
    of a loop: `RenameStep("shop.crawl", "pages/~/get", "pages/~/fetch")`. Any operation with a name may be renamed,
    with everything below it; branches of joins and races may not.

    From then on both names are of one operation in this workflow, so that workers with the old code and with the new
    one may run beside each other. Migrate before the new code runs. The migration depends on ("durable",
    "0002_routines"), and has `atomic = False` if there are more than 500 runs. It can be interrupted and applied again,
    and reversed.

    Runs that workers have are tried again for `wait` seconds, then they keep the old name, which still fits.

    Raises TypeError and ValueError for invalid locations; `RenameRefused` when it is applied, with the run's id, if a
    history has the new name already.
    """

    __module__ = "durable.migrations"  # from where migration files that Django writes import it

    fragment = "rename_step"

    def __init__(self, workflow: str, old: str, new: str, *, wait: float = 60, elidable: bool = False) -> None:
        _check_workflow(workflow)
        check_pattern(old, new)
        if len(new) > MAX_LOCATION:
            raise ValueError(f"a location has at most {MAX_LOCATION} characters")
        super().__init__(workflow, old, new, wait=wait, elidable=elidable)
        self.workflow = workflow
        self.old = old
        self.new = new

    @property
    def renames(self) -> list[Rename | Alias]:
        return [Rename(self.workflow, self.old, self.new)]

    def _rewrite(self, alias: str, *, is_back: bool) -> None:
        from durable.renames.rewriting import rename_step

        rename_step(alias, Rename(self.workflow, self.old, self.new), is_back=is_back, wait=self.wait, say=_say)

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f'Rename the recorded operation "{self.old}" of {self.workflow} to "{self.new}"'


class _RenamingOfName(_Renaming):
    """A rename of a workflow or a queue, as `kind` says."""

    kind: ClassVar[AliasKind]

    def __init__(self, old: str, new: str, *, wait: float = 60, elidable: bool = False) -> None:
        for each in (old, new):
            self._check(each)
        if old == new:
            raise ValueError(f'"{old}" is the name already')
        super().__init__(old, new, wait=wait, elidable=elidable)
        self.old = old
        self.new = new

    def _check(self, name: str) -> None:
        """Raise TypeError or ValueError for an invalid name."""
        raise NotImplementedError

    @property
    def renames(self) -> list[Rename | Alias]:
        return [Alias(self.kind, self.old, self.new)]

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f'Rename the {self.kind.value} "{self.old}" to "{self.new}"'


class RenameWorkflow(_RenamingOfName):
    """Rename a workflow, in all its runs: `RenameWorkflow("shop.fulfil", "shop.fulfil_order")`.

    From then on both are names of one workflow, so that workers with the old code and with the new one may run beside
    each other. Its schedules, holds and saved views refer to the new name too. The old name cannot be given to another
    workflow.

    Migrate before the new code runs. The migration depends on ("durable", "0002_routines"), and has `atomic = False` if
    there are more than 500 runs. It can be interrupted and applied again, and reversed. Runs that old code starts
    afterwards keep the old name; the same operation in a later migration rewrites them.

    Runs that other transactions have locked are tried again for `wait` seconds, then they keep the old name, which
    still fits.

    Raises TypeError and ValueError for invalid names; `RenameRefused` when it is applied, if a run or a schedule has
    the new name already.
    """

    __module__ = "durable.migrations"  # from where migration files that Django writes import it

    fragment = "rename_workflow"
    kind = AliasKind.WORKFLOW

    def _check(self, name: str) -> None:
        _check_workflow(name)
        if name.startswith(INTERNAL):
            raise ValueError(f'"{name}" is a name of durable itself: choose another name')

    def _rewrite(self, alias: str, *, is_back: bool) -> None:
        from durable.renames.names import rename_workflow

        rename_workflow(alias, self.old, self.new, is_back=is_back, wait=self.wait, say=_say)


class RenameQueue(_RenamingOfName):
    """Rename a queue, with its open runs: `RenameQueue("default", "orders")`.

    From then on both are names of one queue: a worker that serves one of them serves both, so that workers with the old
    settings and with the new ones may run beside each other. Its pause, schedules and saved views refer to the new name
    too. The old name cannot be given to another queue.

    Migrate before the new code runs. The migration depends on ("durable", "0002_routines"), and has `atomic = False` if
    there are more than 500 open runs. It can be interrupted and applied again, and reversed. Running workers learn of
    the rename within 15 seconds. Runs that old code starts afterwards are in the old queue, and ended runs stay in it.

    Runs that other transactions have locked are tried again for `wait` seconds, then they keep the old name, which
    still fits.

    Raises TypeError and ValueError for invalid names; `RenameRefused` when it is applied, if a run that will wake or a
    schedule has the new name already.
    """

    __module__ = "durable.migrations"  # from where migration files that Django writes import it

    fragment = "rename_queue"
    kind = AliasKind.QUEUE

    def _check(self, name: str) -> None:
        check_queue(name)

    def _rewrite(self, alias: str, *, is_back: bool) -> None:
        from durable.renames.names import rename_queue

        rename_queue(alias, self.old, self.new, is_back=is_back, wait=self.wait, say=_say)


def _check_workflow(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f'the workflow is given by its name, such as "shop.fulfil", not {name!r}')
    if len(name) > MAX_ID:
        raise ValueError(f"the name of a workflow has at most {MAX_ID} characters")


def renames_of(operations: Iterable[Operation]) -> list[Rename | Alias]:
    """Return the renames made by the operations of a migration, in order."""
    return [found for each in operations if isinstance(each, _Renaming) for found in each.renames]


def _say(line: str) -> None:
    sys.stdout.write(f"\n    {line}")
    sys.stdout.flush()


def all_migrations() -> list[Migration]:
    """Return all migrations of the project in an order in which they can be applied. Does not query a database."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    seen: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        seen.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return [loader.graph.nodes[each] for each in seen]


def pending_migrations(alias: str) -> list[Migration]:
    """Return the migrations still to be applied to the database, in order."""
    executor = MigrationExecutor(connections[alias])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [migration for migration, _ in plan]


def expected_moves(alias: str, pending: Iterable[Migration]) -> list[Move]:
    """Return the moves in the database and those of `pending` migrations, in order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import MovedName
    from durable.models.renames import recorded_moves

    has_table = MovedName._meta.db_table in connections[alias].introspection.table_names()
    return [*(recorded_moves(alias) if has_table else []), *moves_of(pending)]


def moves_of(migrations: Iterable[Migration]) -> list[Move]:
    """Return the moves of these migrations, in order. Does not query a database."""
    # by attribute and not by class: the operations themselves call this for all migrations
    said = (getattr(each, "move", None) for migration in migrations for each in migration.operations)
    return [each for each in said if isinstance(each, Move)]


def expected_renames(alias: str, pending: Iterable[Migration]) -> list[Rename | Alias]:
    """Return the renames in force in the database, and those of `pending` migrations, in their order."""
    # imported here, because a process of the replay check imports this module before it sets Django up
    from durable.models import RenamedName
    from durable.models.renames import names_in_force

    connection = connections[alias]
    found: list[Rename | Alias] = []
    if RenamedName._meta.db_table in connection.introspection.table_names():
        found = names_in_force(alias)
    return found + [each for each in renames_of_migrations(pending) if each not in found]


def renames_of_migrations(migrations: Iterable[Migration]) -> list[Rename | Alias]:
    """Return the renames of these migrations, in order, each once. Does not query a database."""
    return list(dict.fromkeys(found for each in migrations for found in renames_of(each.operations)))


def with_other_names(workflows: Iterable[str], renames: Iterable[Rename | Alias]) -> list[str]:
    """Return the names of workflows, with all other names that the renames give them."""
    known = Aliases(each for each in renames if isinstance(each, Alias) and each.kind == AliasKind.WORKFLOW)
    return list(dict.fromkeys(name for each in workflows for name in known.names(each)))
