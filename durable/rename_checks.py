"""The system check of renamed workflows: the code has each under one of its names.

It reads the project's migrations, applied or not, and asks no database. `migrate` runs it before it renames anything.
"""

from __future__ import annotations

from itertools import combinations

from django.core.checks import CheckMessage, Error, register

from durable.core import registry
from durable.core.registry import WorkflowDefinition
from durable.core.renames import Alias, Aliases, AliasKind
from durable.lint_checks import leaves_code_out

_ID = "durable.E016"


@register("durable")
def check_renamed_workflows(**_: object) -> list[CheckMessage]:
    """Check that no two functions have two names of one workflow."""
    if leaves_code_out():
        return []
    from durable.renames.pending import all_migrations, renames_of_migrations

    renames = renames_of_migrations(all_migrations())
    try:
        names = Aliases(each for each in renames if isinstance(each, Alias) and each.kind is AliasKind.WORKFLOW)
    except ValueError as error:
        hint = "Correct the migration that is not applied anywhere yet."
        return [Error(f"The migrations of the project contradict each other: {error}.", hint=hint, id=_ID)]
    hint = (
        "Keep one of the functions: it executes the runs of both names. If one is to be another workflow, give it a name that "
        "no migration has renamed."
    )
    by_oldest: dict[str, list[WorkflowDefinition]] = {}
    for each in registry.all():
        by_oldest.setdefault(names.first(each.name), []).append(each)
    return [
        Error(
            f'A migration has made "{one.name}" and "{other.name}" names of one workflow, and the code has two: '
            f"{registry.source_location(one)} and {registry.source_location(other)}.",
            hint=hint,
            id=_ID,
        )
        for definitions in by_oldest.values()
        for one, other in combinations(definitions, 2)
        if not registry.is_same_function(one, other)
    ]
