"""Import a recorded run of another database, to be looked at: it rests until an operator says otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import NamedTuple

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError
from django.db.models import IntegerField, Model

from durable import runtime
from durable.conf import conf
from durable.core.errors import RunConflictError
from durable.core.ids import check_id, check_queue
from durable.core.records import ENDED, EntryKind, EntryRecord, Message, Request, RunRecord, RunState, TagChange
from durable.core.summary import Summary, SummaryKind
from durable.core.tags import check_data
from durable.core.time_limits import NewRun
from durable.models import Entry, EntryMetadata, OperatorAction, QueueMessage, Run
from durable.models.rows import NameField
from durable.operations.audit import Outcome
from durable.operations.audited import Attribution, audited
from durable.operations.common import check_not_an_order, require_step
from durable.operations.imported_handlers import LeftOut, without_foreign_handlers
from durable.operations.start import Started
from durable.store.rules import row_rules


class Imported(NamedTuple):
    """An imported run, and the rollback handlers that were left out."""

    started: Started
    left_out: Sequence[LeftOut]


_ACTION = "import"
_ORIGIN = 1_000  # characters that the log keeps of where a run comes from
_KINDS = frozenset(EntryKind)


def import_run(
    run: RunRecord,
    entries: Sequence[EntryRecord],
    messages: Sequence[Message],
    *,
    origin: str,
    digest: str,
    tags: Mapping[str, str] | None = None,
    tags_at_start: Mapping[str, str] | None = None,
    is_trial: bool = False,
) -> Imported:
    """Store a recorded run under its id, with its history and its inbox. Return the run, and whether it is new.

    An open run is paused, so that no worker takes it up. It has no parent, no key, no deadline and no slot of a limit,
    and nothing is announced. `tags` are those of the run, `tags_at_start` those that its start has given, both as they
    are stored. `origin` says where it comes from, for the audit log; `digest` names the content. With
    `is_trial` everything is checked and nothing is stored. A rollback handler that the code at hand does not give to
    the step is left out (`durable.operations.imported_handlers`): a rollback would call it with what the file says.

    Raises RunConflictError for an id that is taken, unless this content was imported under it; ValueError for records
    that cannot be stored, BulkOrderError for a run that performs a bulk, OperationDeniedError.
    """
    require_step("importing a run", "import it in a step")
    at = runtime.current()
    with audited(at, _ACTION, run.id, subject=("content", digest)) as attribution:
        row_rules.check(run)
        wanted = _at_rest(run)
        check_not_an_order(run.workflow, _ACTION)
        _check(wanted, entries, messages)
        kept, left_out = without_foreign_handlers(run.workflow, entries)
        with _refusing(run.id), at.store.transaction():
            found = at.store.get(wanted.id)
            if found is not None:
                return Imported(_there_already(attribution), left_out)
            if is_trial:
                return Imported(Started(wanted.id, is_new=True), left_out)
            [(stored, is_new)] = at.store.create([_with_tags(wanted, tags_at_start)])
            attribution.check_sees(stored.id)
            if not is_new:
                return Imported(_there_already(attribution), left_out)
            later = {name: value for name, value in (tags or {}).items() if value != (tags_at_start or {}).get(name)}
            at.store.import_history(
                stored.id,
                entries=kept,
                attempts=(),
                messages=messages,
                tags=TagChange(stored.created_at, later) if later else None,
            )
            detail = f"{origin[:_ORIGIN]}, content {digest}"
            at.store.log([attribution.done(before=str(run.state), after=str(stored.state), detail=detail)])
    return Imported(Started(wanted.id, is_new=True), left_out)


@contextmanager
def _refusing(run_id: str) -> Iterator[None]:
    """Raise ValueError where the database refuses the records for one of its constraints."""
    try:
        yield
    except (IntegrityError, DataError) as error:
        problem = str(error).partition("\n")[0]
        raise ValueError(f'the records of run "{run_id}" cannot be stored, the database says: {problem}') from error


def _at_rest(run: RunRecord) -> RunRecord:
    """Return the run as no worker takes it up, without what belongs to the database that it comes from."""
    resting = replace(
        run,
        fence=max(run.fence, 1),  # it has a history to load
        lease_expires_at=None,
        worker="",
        wake_at=None,
        crashes=0,
        parent_id=None,
        replay_of_id=None,
        message_count=0,
    )
    if run.state not in ENDED:
        resting.state = RunState.PAUSED
        resting.pending_request = Request.NONE
        resting.summary = Summary(SummaryKind.IMPORTED, state=str(run.state))
    return resting


def _with_tags(run: RunRecord, tags: Mapping[str, str] | None) -> RunRecord:
    return NewRun(**{each.name: getattr(run, each.name) for each in fields(RunRecord)}, tags=tags) if tags else run


def _check(run: RunRecord, entries: Sequence[EntryRecord], messages: Sequence[Message]) -> None:
    """Raise ValueError or TypeError for records that the tables do not take."""
    check_id(run.id)
    check_queue(run.queue)
    if not run.workflow.isprintable():
        raise ValueError(f"the name of the workflow is made of printable characters: {run.workflow[:64]!r}")
    _check_fits(run, Run)
    for message in messages:
        _check_fits(message, QueueMessage)
    for each in entries:
        _check_fits(each, Entry)
        _check_fits(each, EntryMetadata)
        if each.kind not in _KINDS:
            raise ValueError(
                f'the entry "{each.location}" is of the kind {each.kind!r}, which this release does not know'
            )
        try:
            check_data(each)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f'the entry "{each.location}" has what are no tags: {error}') from error
    if len({each.location for each in entries}) < len(entries):
        raise ValueError("two entries have the same location")
    if len({each.order for each in messages}) < len(messages) or any(each.run_id != run.id for each in messages):
        raise ValueError("two messages have the same place in the inbox, or one is another run's")


def _check_fits(record: object, model: type[Model]) -> None:
    """Raise ValueError for a name, a number or a time that its column does not hold."""
    for field in model._meta.fields:
        if isinstance(field, NameField | IntegerField) and hasattr(record, field.name):
            value = getattr(record, field.name)
            try:
                field.clean(field.get_prep_value(value), None)
            except ValidationError as error:
                raise ValueError(f"the {field.name} {str(value)[:64]!r}: {' '.join(error.messages)}") from error


def _there_already(attribution: Attribution) -> Started:
    attribution.check_sees(attribution.run_id)
    kind, digest = attribution.subject
    rows = OperatorAction.objects.using(conf.DATABASE).filter(run_id=attribution.run_id, action=_ACTION)
    if not rows.filter(outcome=Outcome.DONE.value, subject_kind=kind, subject=digest).exists():
        problem = "and was not imported from this content: import it under another id, with --as-prefix"
        raise RunConflictError(attribution.run_id, problem)
    return Started(attribution.run_id, is_new=False)
