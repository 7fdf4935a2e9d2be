"""The check before a rename: whether any history forbids it. Reads without locks, and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from durable.core.location import parent, unescape
from durable.core.records import EntryKind
from durable.core.renames import Alias, Aliases, AliasKind, Names, Rename
from durable.models import Entry, RenamedName, RenamedStep
from durable.renames.places import Renaming


class RenameRefused(Exception):
    """A recorded name cannot be changed: what forbids it, why, and what to do."""


def recorded_names(alias: str, kind: AliasKind) -> Aliases:
    """Return what migrations have renamed so far."""
    rows = RenamedName.objects.using(alias).filter(kind=kind.value).order_by("id")
    return Aliases(Alias(kind, *each) for each in rows.values_list("old", "new"))


def is_recorded(alias: str, name: Alias) -> bool:
    """Return True if both names are of one thing already. Raises RenameRefused if no migration can make them so."""
    names = recorded_names(alias, name.kind)
    if names.is_same(name.old, name.new):
        return True
    try:
        names.add(name)
    except ValueError as error:
        raise RenameRefused(f"{error}. Nothing was written.") from error
    return False


def check_names(alias: str, rename: Rename, workflows: Sequence[str]) -> None:
    """Raise RenameRefused for a name that another rename has; `workflows` are all names of the rename's workflow."""
    before = RenamedStep.objects.using(alias).filter(workflow__in=workflows).order_by("id")
    try:
        Names([*(Rename(*each) for each in before.values_list("workflow", "old", "new")), rename])
    except ValueError as error:
        raise RenameRefused(f"{error}. Nothing was written.") from error


def check_runs(alias: str, run_ids: Sequence[str], renaming: Renaming) -> None:
    """Raise RenameRefused for a run in which the new name is taken, or which cannot be rewritten."""
    entries = Entry.objects.using(alias).filter(run__in=run_ids).order_by()
    taken = entries.filter(renaming.in_column("location", renaming.new)).values_list("run_id", "location")
    for run_id, location in taken.iterator():
        if renaming.is_new(location):
            raise RenameRefused(
                f'the run "{run_id}" has a record "{location}" already: "{renaming.new}" is the name of another operation, '
                "or code that uses it runs before the migration does. Choose another name, or migrate before the new "
                "code runs. Nothing was written."
            )
    scope, name = parent(renaming.old), unescape(renaming.old.rpartition("/")[2])
    if scope:
        forks = entries.filter(renaming.in_column("location", scope), kind__in=[EntryKind.JOIN, EntryKind.RACE])
        for run_id, location, data in forks.values_list("run_id", "location", "data").iterator():
            if renaming.is_scope(location) and name in data.get("branches", ()):
                raise RenameRefused(
                    f'in the run "{run_id}", "{name}" is a branch of "{location}": a branch cannot be renamed. '
                    "Keep its name, or let these runs go the old way with ctx.get_version. Nothing was written."
                )
    if len(renaming.new.encode()) > len(renaming.old):
        named = entries.filter(renaming.in_column("location")).values_list("run_id", "location")
        for run_id, location in named.iterator():
            if renaming.has(location) and renaming.is_too_long(renaming.of(location)):
                raise RenameRefused(
                    f'in the run "{run_id}", the location "{renaming.of(location)[:80]}..." would be too long: choose a '
                    "shorter name. Nothing was written."
                )
