"""Import a recorded run of another database for inspection: it does not run unless an operator resumes it.

Anybody may have written the file, and a rollback calls the recorded handlers. So an imported step may only name a
handler that the code here gives to a step of that name. The names are compared with the source of the workflow's
module, and of the modules in its package from which it imports names. Nothing is executed or imported.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from types import ModuleType
from typing import Any, Final, NamedTuple

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError
from django.db.models import IntegerField, Model

from durable import carriers, runtime
from durable.conf import conf
from durable.core import registry
from durable.core.errors import RunConflictError
from durable.core.ids import check_id, check_queue
from durable.core.location import unescape
from durable.core.names.recorded_names import other_names
from durable.core.new_runs import NewRun, Subject
from durable.core.options import handler_name
from durable.core.people import ASK
from durable.core.records import (
    ENDED,
    ActionOutcome,
    EntryKind,
    EntryRecord,
    EntryStatus,
    Message,
    Request,
    RunRecord,
    RunState,
    TagChange,
)
from durable.core.summary import Summary, SummaryKind
from durable.core.tags import check_data
from durable.models import Entry, EntryMetadata, OperatorAction, QueueMessage, Run
from durable.models.rows import NameField
from durable.operations.audit import Attribution, audited
from durable.operations.common import check_not_an_order, require_step
from durable.operations.settle import waiting_no_more
from durable.operations.start import Started
from durable.store.rules import row_rules

_MOST: Final = 200  # modules that are read
_STEPS: Final = frozenset({"step", "try_step"})


class LeftOut(NamedTuple):
    """A step of an imported history, and its handler, which was not imported."""

    location: str
    handler: str


class _Named(NamedTuple):
    """A handler that code gives to a step; `step` is None if the source does not show the step's name."""

    handler: str
    step: str | None


def without_foreign_handlers(workflow: str, entries: Sequence[EntryRecord]) -> tuple[list[EntryRecord], list[LeftOut]]:
    """Return the entries without the handlers that the workflow's code does not give to these steps; and those
    handlers.
    """
    named: frozenset[_Named] | None = None
    kept: list[EntryRecord] = []
    left_out: list[LeftOut] = []
    for entry in entries:
        if entry.kind == EntryKind.STEP and "rollback" in entry.data:
            named = _named_by(workflow) if named is None else named
            handler = str(entry.data["rollback"].get("handler", ""))
            step, names = unescape(entry.location.rpartition("/")[2]), {handler, *other_names(handler)}
            if not any(each.handler in names and each.step in (step, None) for each in named):
                left_out.append(LeftOut(entry.location, handler))
                entry = replace(entry, data={name: each for name, each in entry.data.items() if name != "rollback"})
        kept.append(entry)
    return kept, left_out


def _named_by(workflow: str) -> frozenset[_Named]:
    """Return the handlers named in a workflow's code; none for a workflow that this process does not know."""
    try:
        function = registry.get(workflow).function
    except registry.UnknownWorkflowError:
        return frozenset()
    first = sys.modules.get(inspect.unwrap(function).__module__)
    return frozenset(each for module in _modules_around(first) for each in _named_in(module))


def _modules_around(first: ModuleType | None) -> Iterator[ModuleType]:
    """Yield a module, and the modules of its package from which it may import steps."""
    waiting, seen = [] if first is None else [first], set[str]()
    while waiting and len(seen) < _MOST:
        module = waiting.pop()
        if module.__name__ in seen:
            continue
        seen.add(module.__name__)
        yield module
        package = module.__name__.partition(".")[0]
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and name.partition(".")[0] == package and (found := sys.modules.get(name)):
                waiting.append(found)


def _named_in(module: ModuleType) -> Iterator[_Named]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "rollback" and (handler := _name_of(keyword.value, module)) is not None:
                yield _Named(handler, _step_of(node))


def _step_of(call: ast.AST) -> str | None:
    """Return the name of the step that a call makes, if the source shows it."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _STEPS and call.args:
        first = call.args[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None


def _name_of(node: ast.expr, module: ModuleType) -> str | None:
    """Return the recorded name of the function in an expression such as `bank.refund`."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    found: Any = vars(module).get(node.id)
    for each in path:
        if not isinstance(found, ModuleType | type):
            return None
        found = inspect.getattr_static(found, each, None)
    try:
        return handler_name(found)
    except TypeError:
        return None


class Imported(NamedTuple):
    """An imported run, and the rollback handlers that were left out."""

    started: Started
    left_out: Sequence[LeftOut]


_ACTION = "import"
_ORIGIN = 1_000  # characters of a run's origin in the log
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
    subjects: Sequence[Subject] = (),
    is_trial: bool = False,
) -> Imported:
    """Store a recorded run under its id, with its history and its inbox. Return the run, and whether it is new.

    An open run is stored as paused, so that no worker claims it. A step of it that waited for a person is tried again
    when the run is resumed, or its `verify` is asked; without one a person is asked again. An open question to people
    is asked anew then: what they have said so far is not in the file. The run has no parent, key, deadline or slot of a
    limit, and no signal is sent. `tags` are the run's, `tags_at_start` those given by its start, both in stored form;
    `subjects` are what it is about. `origin` says where the run comes from, for the audit log; `digest` identifies the
    content. With `is_trial` everything is checked and nothing is stored. A rollback handler that the code here does not
    give to the step is left out: a rollback would call it with arguments from the file.

    Raises RunConflictError for an id that is taken, unless this content was imported under it; ValueError for records
    that cannot be stored, BulkOrderError for a run that performs a bulk, OperationDeniedError.
    """
    require_step("importing a run", "import it in a step")
    at = runtime.current()
    with audited(at, _ACTION, run.id, subject=("content", digest)) as attribution:
        row_rules.check(run)
        carriers.check(run.carried)
        wanted = _at_rest(run)
        check_not_an_order(run.workflow, _ACTION)
        _check(wanted, entries, messages)
        kept, left_out = without_foreign_handlers(run.workflow, waiting_no_more(entries))
        kept = _asking_anew(run.id, kept, messages)
        with _refusing(run.id), at.store.transaction():
            found = at.store.get(wanted.id)
            if found is not None:
                return Imported(_there_already(attribution), left_out)
            if is_trial:
                return Imported(Started(wanted.id, is_new=True), left_out)
            [(stored, is_new)] = at.store.create([_new(wanted, tags_at_start, subjects)])
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


def _asking_anew(run_id: str, entries: Sequence[EntryRecord], messages: Sequence[Message]) -> list[EntryRecord]:
    """Return the entries, whose open questions to people the next pass asks as if they were new: no row has them here.

    A question whose verdict is in the inbox is none.
    """
    queues = {each.queue for each in messages}
    kept: list[EntryRecord] = []
    for entry in entries:
        ask, names = entry.data.get(ASK), entry.data.get("names")
        if entry.status == EntryStatus.PENDING and isinstance(ask, dict) and isinstance(names, list):
            is_decided = len(names) == 1 and isinstance(names[0], str) and names[0] in queues
            entry = replace(entry, data={**entry.data, ASK: {**ask, "run": run_id if is_decided else ""}})
        kept.append(entry)
    return kept


@contextmanager
def _refusing(run_id: str) -> Iterator[None]:
    """Raise ValueError if the database refuses the records because of a constraint."""
    try:
        yield
    except (IntegrityError, DataError) as error:
        problem = str(error).partition("\n")[0]
        raise ValueError(f'the records of run "{run_id}" cannot be stored, the database says: {problem}') from error


def _at_rest(run: RunRecord) -> RunRecord:
    """Return the run in a form that no worker claims, without what belongs to its original database."""
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


def _new(run: RunRecord, tags: Mapping[str, str] | None, subjects: Sequence[Subject]) -> RunRecord:
    if not (tags or subjects):
        return run
    columns = {each.name: getattr(run, each.name) for each in fields(RunRecord)}
    return NewRun(**columns, tags=tags, subjects=subjects)


def _check(run: RunRecord, entries: Sequence[EntryRecord], messages: Sequence[Message]) -> None:
    """Raise ValueError or TypeError for records that the tables cannot hold."""
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
            raise ValueError(f'the tags of the entry "{each.location}" cannot be read: {error}') from error
    if len({each.location for each in entries}) < len(entries):
        raise ValueError("two entries have the same location")
    if len({each.order for each in messages}) < len(messages) or any(each.run_id != run.id for each in messages):
        raise ValueError("two messages have the same place in the inbox, or one is another run's")


def _check_fits(record: object, model: type[Model]) -> None:
    """Raise ValueError for a name, a number or a time that does not fit its column."""
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
    if not rows.filter(outcome=ActionOutcome.DONE.value, subject_kind=kind, subject=digest).exists():
        problem = "and was not imported from this content: import it under another id, with --as-prefix"
        raise RunConflictError(attribution.run_id, problem)
    return Started(attribution.run_id, is_new=False)
