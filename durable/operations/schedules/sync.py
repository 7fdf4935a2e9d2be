"""The rows of the schedules that the code declares: `@workflow(schedule=cron(...))`.

Synchronised after `migrate` and by `durable schedules --sync`, called by a person or a deploy with the newest code.
Workers do not synchronise at their start: in a rolling deploy, an old one would revert the new code's rules.

The code owns the rule, the arguments and the options; the operator owns `paused` and may override the rule. A schedule
that the code no longer has is paused and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.apps import AppConfig
from django.db import connections

from durable import runtime
from durable.conf import conf
from durable.core import registry
from durable.core.errors import PayloadError
from durable.core.names.renames import is_same_workflow, names_of_workflow
from durable.models import RenamedName, Schedule
from durable.operations.schedules.rows import (
    arguments_of,
    atomic,
    encode_input,
    lock_table,
    next_moment,
    place_of,
    rows,
    set_next,
)
from durable.runtime import Runtime
from durable.schedules import Rules, check_name

_GONE: Final = "the code no longer has it"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a schedule's row and the code. `change` is "new", "changed", "gone", "back" or "taken"."""

    name: str
    change: str
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return {
            "new": f'"{self.name}" has no row yet',
            "changed": f'"{self.name}" has another {", ".join(self.fields)} in the code',
            "gone": f'"{self.name}" is no longer in the code',
            "back": f'"{self.name}" is in the code again',
            "taken": f'"{self.name}" is the name of a schedule that operators made',
        }[self.change]


def declared(*, discovered_only: bool = False) -> dict[str, tuple[str, Rules]]:
    """Return the schedules that this process's code declares: workflow and rules, by schedule.

    A schedule has the name of its workflow. Raises ValueError for a name that no schedule can have.
    """
    found = {}
    for definition in registry.all():
        rules: Rules | None = getattr(definition, "schedule", None)
        if rules is not None and not (discovered_only and not registry.is_discovered(definition.name)):
            found[check_name(definition.name)] = (definition.name, rules)
    return found


def synchronise(*, discovered_only: bool = False) -> list[Difference]:
    """Make the rows match the code, in one transaction; return the differences.

    `migrate` calls this, and so do tests that need the code's schedules. With `discovered_only`, omit schedules of
    workflows that no module `workflows` of an installed app has.
    """
    at = runtime.current()
    with atomic(at):
        lock_table()
        at.store.learn_names()
        declared_here, known = declared(discovered_only=discovered_only), declared()
        own = _locked(_of_code(declared_here))
        wanted, known = _as_named(declared_here, own), _as_named(known, own)
        found = list(_compared(at, wanted, known, own))
        for difference in found:
            _apply(at, difference, wanted, own)
        if at.schedules is not None:  # on the clock of a harness
            at.schedules.update(wanted)
            _start_clock(at, own, wanted)
    return found


def differences() -> list[Difference]:
    """Return the differences between the rows and the code. One query; changes nothing."""
    runtime.current().store.learn_names()
    wanted = declared()
    own = {each.name: each for each in _of_code(wanted)}
    wanted = _as_named(wanted, own)
    return list(_compared(runtime.current(), wanted, wanted, own))


def _of_code(wanted: Iterable[str]) -> Any:
    """Return the rows of schedules that the code declares or once declared."""
    return rows().filter(name__in=wanted) | rows().filter(origin=Schedule.Origin.CODE)


def _as_named(wanted: Mapping[str, tuple[str, Rules]], own: Mapping[str, Schedule]) -> dict[str, tuple[str, Rules]]:
    """Return the declared schedules under the names that their rows and workflows have.

    A schedule keeps its original name, and this code may be from before or after a rename.
    """
    found = {}
    for name, (workflow, rules) in wanted.items():
        known = [each for each in (name, *names_of_workflow(name)) if each in own]
        row = next((own[each] for each in known if own[each].origin == Schedule.Origin.CODE), None)
        if row is None:
            found[name] = (workflow, rules)
        else:
            found[row.name] = (row.workflow if is_same_workflow(row.workflow, workflow) else workflow, rules)
    return found


def synchronise_after_migrate(sender: AppConfig, using: str, **_: Any) -> None:  # noqa: ARG001
    """Synchronise; a receiver of `post_migrate`."""
    if using != conf.DATABASE:
        return
    if has_table(using):  # not after a migration backwards
        synchronise(discovered_only=True)


def has_table(using: str) -> bool:
    """Return whether the database has the tables of schedules and of renamed workflows in this code's form."""
    introspection = connections[using].introspection
    with connections[using].cursor() as cursor:
        if not {_TABLE, RenamedName._meta.db_table} <= set(introspection.table_names(cursor)):
            return False
        columns = {each.name for each in introspection.get_table_description(cursor, _TABLE)}
    return {field.column for field in Schedule._meta.concrete_fields} <= columns


_TABLE: Final = Schedule._meta.db_table


def _locked(found: Any) -> dict[str, Schedule]:
    if connections[conf.DATABASE].features.has_select_for_update:
        found = found.select_for_update()
    return {each.name: each for each in found.order_by("name")}


def _compared(
    at: Runtime, wanted: Mapping[str, tuple[str, Rules]], known: Mapping[str, object], own: Mapping[str, Schedule]
) -> Iterable[Difference]:
    for name, (workflow, rules) in sorted(wanted.items()):
        row = own.get(name)
        if row is None:
            yield Difference(name, "new")
        elif row.origin != Schedule.Origin.CODE:
            yield Difference(name, "taken")
        else:
            if row.gone_at is not None:
                yield Difference(name, "back")
            if changed := _changed(at, row, workflow, rules):
                yield Difference(name, "changed", tuple(changed))
    for name, row in sorted(own.items()):
        if name not in known and row.origin == Schedule.Origin.CODE and row.gone_at is None:
            yield Difference(name, "gone")


def _columns(workflow: str, rules: Rules) -> dict[str, Any]:
    options = rules.options
    return {
        "workflow": workflow,
        "rule": rules.text,
        "zone": options.zone or "UTC",
        "overlap": options.overlap or "skip",
        "catch_up": options.catch_up or "last",
        "window": options.window,
        "jitter": options.jitter or timedelta(0),
    }


def _changed(at: Runtime, row: Schedule, workflow: str, rules: Rules) -> list[str]:
    changed = [name for name, value in _columns(workflow, rules).items() if getattr(row, name) != value]
    wanted = list(rules.options.args or ()), dict(rules.options.kwargs or {})
    try:
        recorded = encode_input(at, row.name, *arguments_of(row))
    except PayloadError:
        recorded = ""
    # Both as codec text: an encryption writes a value differently each time, so the recorded one is written again.
    if _plain(at, row.name, recorded) != _plain(at, row.name, encode_input(at, row.name, *wanted)):
        changed.append("arguments")
    return changed


def _plain(at: Runtime, name: str, text: str) -> Any:
    return at.decode(text or None, place_of(name))


def _apply(
    at: Runtime, difference: Difference, wanted: Mapping[str, tuple[str, Rules]], own: dict[str, Schedule]
) -> None:
    now = at.now()
    name = difference.name
    if difference.change == "new":
        workflow, rules = wanted[name]
        created = Schedule(name=name, origin=Schedule.Origin.CODE, **_columns(workflow, rules))
        created.args, created.kwargs = list(rules.options.args or ()), dict(rules.options.kwargs or {})
        created.save(using=conf.DATABASE)
        own[name] = created
    elif difference.change == "gone":
        _leave(own[name], now)
    elif difference.change == "back":
        _return(own[name], now)
    elif difference.change == "changed":
        row = own[name]
        workflow, rules = wanted[name]
        for column, value in _columns(workflow, rules).items():
            setattr(row, column, value)
        row.args, row.kwargs = list(rules.options.args or ()), dict(rules.options.kwargs or {})
        row.changes += 1
        row.save(using=conf.DATABASE)


def _leave(row: Schedule, now: datetime) -> None:
    row.gone_at = now
    row.changes += 1
    if not row.paused:
        row.paused, row.paused_at, row.pause_reason = True, now, _GONE
    row.save(using=conf.DATABASE)


def _return(row: Schedule, now: datetime) -> None:
    row.gone_at = None
    row.changes += 1
    if row.paused and row.pause_reason == _GONE:  # an operator's pause stays
        row.paused, row.paused_at, row.pause_reason = False, None, ""
        row.next_at = next_moment(row, now)
    row.save(using=conf.DATABASE)


def _start_clock(at: Runtime, own: Mapping[str, Schedule], wanted: Iterable[str]) -> None:
    for name in wanted:
        row = own[name]
        if not row.tick_count:
            set_next(row, next_moment(row, at.now()))
            rows().filter(pk=row.pk).update(next_at=row.next_at, due_at=row.due_at)
