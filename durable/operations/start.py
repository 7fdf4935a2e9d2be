"""Starting runs: new ones, and restarts of earlier ones, also with edited arguments.

Edits replace arguments by name. All others stay as they were recorded, with their types, even values that the editor
may not see or that JSON cannot express.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, get_type_hints

from django.core.exceptions import SynchronousOnlyOperation
from django.db import OperationalError, ProgrammingError

from durable import runtime
from durable.conf import conf
from durable.core.current import running_run
from durable.core.errors import KeyConflictError, RunConflictError, StartRefusedError
from durable.core.ids import check_id, check_queue, new_id
from durable.core.new_runs import NEWER_INPUT, How, NewRun
from durable.core.places import Place
from durable.core.records import ActionRecord, RunRecord
from durable.core.registry import INTERNAL, WorkflowDefinition
from durable.core.transitions import started
from durable.declared_limits import check_defined
from durable.instrumentation.observers import observe_verb
from durable.operations import audit, start_options
from durable.operations.audit import Attribution, audited
from durable.operations.common import (
    announce,
    check_not_an_order,
    check_served,
    is_of_workflow,
    require_step,
    send_run_changed,
    workflow_named,
)
from durable.operations.start_options import (
    OF_CHILDREN,
    READ,
    KeyOptions,
    StartOptions,
    StartRate,
    note_refused,
    start_rate,
    take_units,
)
from durable.runtime import Runtime
from durable.store.base import inherited

#: Annotations that are checked against the type of a JSON value; others are not.
_CHECKED: Final[Mapping[Any, tuple[type, ...]]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    list: (list,),
    dict: (dict,),
}


def arguments_of(workflow: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments by parameter name.

    Raises UnknownWorkflowError, and ValueError if they no longer fit the workflow's code.
    """
    bound = _bound(workflow_named(workflow).function, given)
    return dict(list(bound.arguments.items())[1:])  # without the context


def edited(workflow: str, given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input with these arguments replaced. Raises as `arguments_of` does, and ValueError for a change that
    does not fit the signature.
    """
    function = workflow_named(workflow).function
    bound = _bound(function, given)
    parameters = dict(list(bound.signature.parameters.items())[1:])
    hints = _hints(function)
    for name, value in changes.items():
        parameter = parameters.get(name)
        if parameter is None:
            known = ", ".join(parameters) or "none"
            raise ValueError(f"{workflow} has no argument {name[:100]!r}; its arguments are {known}")
        bound.arguments[name] = _fitting(name, value, parameter, hints.get(name))
    return {**given, "args": list(bound.args[1:]), "kwargs": dict(bound.kwargs)}


def _bound(function: Callable[..., Any], given: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return inspect.signature(function).bind(None, *given["args"], **given["kwargs"])
    except TypeError as error:
        raise ValueError(f"the recorded input does not fit the workflow's code any more: {error}") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001  # a name that exists for type checkers only
        return {}


def _fitting(name: str, value: Any, parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        if not isinstance(value, list):
            raise ValueError(f"the arguments *{name} are a list, not {type(value).__name__}")
        return tuple(value)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        if not isinstance(value, dict):
            raise ValueError(f"the arguments **{name} are an object, not {type(value).__name__}")
        return value
    allowed = _CHECKED.get(hint)
    is_wrong = allowed is not None and (
        not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool)
    )
    if is_wrong:
        raise ValueError(f"the argument {name} is {hint.__name__}, not {type(value).__name__}")
    return value


Call = tuple[str | None, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """The workflow to start, and how."""

    workflow: str
    signature: inspect.Signature
    queue: str
    how: How = field(default_factory=How)
    refuses_existing: bool = False
    key: KeyOptions | None = None
    rate: StartRate | None = None


def request_of(workflow: WorkflowDefinition, signature: inspect.Signature, options: StartOptions) -> StartRequest:
    """Return the request to start a workflow with this signature and these options.

    Raises UnknownLimitError; TypeError and ValueError for options that do not go together, and for a queue that the
    settings lack. A harness has no workers and accepts any queue.
    """
    check_defined(workflow.limits)
    if options.queue is not None and conf.REDIS and not runtime.is_replaced():
        check_served(options.queue)
    for each in OF_CHILDREN:
        if getattr(options, each.name) is not None:
            raise TypeError(
                f"using({each.name}=...) is for children: ctx.child and ctx.start_child take {workflow.name} with it, start "
                "does not"
            )
    return StartRequest(
        workflow=workflow.name,
        signature=signature,
        queue=options.queue or workflow.queue,
        how=options.how,
        refuses_existing=options.on_conflict == "error",
        key=options.key_options(),
        rate=start_rate(options.rate, options.when_full, workflow.limits),
    )


class Started(NamedTuple):
    """The id of a run, and whether this call created it."""

    id: str
    is_new: bool


def start(request: StartRequest, calls: Sequence[Call]) -> list[Started]:
    """Start a run for each call (id or None, arguments, keywords), in few statements; return them in order.

    Raises TypeError for arguments that do not fit, ValueError for an invalid id, PayloadError, RunConflictError if a
    run with another workflow or input has the id, and StartRefusedError if the rate has no room.
    """
    try:
        with observe_verb("start", request.workflow) as verb:
            found = _start(request, calls)
            verb.runs = [each.id for each in found]
            return found
    except StartRefusedError as refusal:
        note_refused(runtime.current(), refusal)
        raise


def _start(request: StartRequest, calls: Sequence[Call]) -> list[Started]:
    at = runtime.current()
    if audit.acting() is None:  # the application's own traffic, which is not logged
        created = put(at, request, calls)
    else:
        with audited(at, "start", _first_id(calls)) as attribution, at.store.transaction():
            check_not_an_order(request.workflow, "start")
            created = put(at, request, calls, attribution)
            at.store.log([_logged(attribution, request, _first_id(calls), *each) for each in created])
    announce_started(at, created)
    return [Started(run.id, is_new) for run, is_new in created]


def announce_started(at: Runtime, created: Sequence[tuple[RunRecord, bool]]) -> None:
    """Notify workers of the new runs, and send their signals."""
    new = [run for run, is_new in created if is_new]
    if new:
        announce(at, new[0].queue, new[0].wake_at)  # empty, if new starts of the workflow are held
        send_run_changed(at, new, previous="")


def put(
    at: Runtime, request: StartRequest, calls: Sequence[Call], attribution: Attribution | None = None
) -> list[tuple[RunRecord, bool]]:
    """Create the runs, without a permission check. Return each row that now has the id, and whether it is new."""
    if any(run_id is None for run_id, _, _ in calls):
        require_step(
            f"starting {request.workflow} without an id", "start it in a step, or with using(id=...) made of ctx.run_id"
        )
    if not calls:
        return []
    carried = _saved(request.workflow) if conf.CARRY else None
    runs = [_new_run(at, request, call, carried) for call in calls]
    may_conflict = len(calls) > 1 and any(run_id is not None for run_id, _, _ in calls)
    with at.store.transaction() if may_conflict or request.rate is not None else nullcontext():  # all of them or none
        try:
            created = _created(at, runs, request.key, attribution)
        except KeyConflictError as conflict:
            if attribution is not None:
                attribution.check_sees(conflict.run_id, key=conflict.key)
            raise
        for wanted, (found, is_new) in zip(runs, created, strict=True):
            if attribution is not None:
                key = "" if request.key is None or found.id == wanted.id else request.key.key
                attribution.check_sees(found.id, key=key)
            if not is_new and found.id == wanted.id:
                _check_same(at, request, wanted, found, attribution)
        if (rate := request.rate) is not None:
            new = [(run, call) for (run, is_new), call in zip(created, calls, strict=True) if is_new]
            take_units(at, [(run, *rate.wanted(args, kwargs)) for run, (_, args, kwargs) in new])
    return created


def _saved(workflow: str) -> str | None:
    """Return what travels with runs that are started here. Raises CarrierError."""
    from durable import carriers  # few projects need it

    return None if workflow.startswith(INTERNAL) else carriers.saved()


def _created(
    at: Runtime, runs: Sequence[RunRecord], key: KeyOptions | None, attribution: Attribution | None
) -> list[tuple[RunRecord, bool]]:
    try:
        if key is not None:
            check_sees = None if attribution is None else partial(attribution.check_sees, key=key.key)
            return [
                start_options.put(at, run, key, check_sees=check_sees) for run in runs
            ]  # one: start_many takes no key
        return list(at.store.create(runs))
    except (ProgrammingError, OperationalError) as error:
        if "durable_" in str(error):  # the error of one of durable's tables or functions
            error.add_note("Are all of durable's migrations applied? Run manage.py migrate.")
        raise
    except SynchronousOnlyOperation as error:
        error.add_note("From async code, start a run with `await workflow.astart(...)`.")
        raise


def _first_id(calls: Sequence[Call]) -> str:
    """Return the id that a refused start asked for; "" if it asked for none or several."""
    return (calls[0][0] or "") if len(calls) == 1 else ""


def _logged(
    attribution: Attribution, request: StartRequest, asked_id: str, run: RunRecord, is_new: bool
) -> ActionRecord:
    if is_new:
        return attribution.done(before="", after=run.state, run_id=run.id, detail=run.workflow)
    debounce = None if request.key is None or run.id == asked_id else request.key.debounce
    became = "was there already" if debounce is None else NEWER_INPUT if debounce.keep == "last" else "put off"
    return attribution.done(before=run.state, after=run.state, run_id=run.id, detail=f"{run.workflow}: {became}")


def _new_run(at: Runtime, request: StartRequest, call: Call, carried: str | None) -> RunRecord:
    run_id, args, kwargs = call
    check_arguments(request.workflow, request.signature, args, kwargs)
    now = at.now()
    chosen = new_id() if run_id is None else check_id(run_id)
    given = {"args": list(args), "kwargs": kwargs}
    return request.how.new_run(
        now,
        id=chosen,
        workflow=request.workflow,
        queue=check_queue(request.queue),
        input=at.encode(given, f"the input of {request.workflow}", Place(chosen, "input")),
        created_at=now,
        parent_id=running_run(),
        carried=carried,
    )


def check_arguments(
    workflow: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise TypeError for arguments that do not fit the workflow's function."""
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        how = sorted(READ.keys() & kwargs.keys() - signature.parameters.keys())
        problem = f"{workflow} cannot be started with these arguments: {error}"
        if how:
            problem += f"; how to start is said before: .using({', '.join(f'{each}=...' for each in how)}).start(...)"
        raise TypeError(problem) from None


def _check_same(
    at: Runtime, request: StartRequest, wanted: RunRecord, found: RunRecord, attribution: Attribution | None
) -> None:
    if request.refuses_existing:
        raise RunConflictError(found.id, 'and on_conflict="error" was asked for')
    if (
        attribution is not None
        and attribution.acting is not None
        and not attribution.acting.may_compare(found.id, ("start",))
    ):
        problem = "and was started by another user; the permission durable.view_payload is needed to learn whether it is the same"
        raise RunConflictError(found.id, problem)
    if not is_of_workflow(found.workflow, wanted.workflow):
        raise RunConflictError(found.id, f'as a run of "{found.workflow}", not of "{wanted.workflow}"')
    if found.input != wanted.input and _arguments(at, request, found) != _arguments(at, request, wanted):
        raise RunConflictError(found.id, f'as a run of "{found.workflow}" with another input')


def _input_of(at: Runtime, run: RunRecord) -> Any:
    return at.decode(run.input, Place(run.id, "input"))


def _arguments(at: Runtime, request: StartRequest, run: RunRecord) -> Any:
    """Return the run's arguments by parameter, however they were passed; its raw input if they do not fit the code."""
    given = _input_of(at, run)
    try:
        bound = request.signature.bind(None, *given["args"], **given["kwargs"])
    except TypeError:
        return given
    bound.apply_defaults()
    return bound.arguments


def restart(run_id: str, *, as_id: str | None = None, changes: Mapping[str, Any] | None = None) -> Started:
    """Start a new run of the same workflow with the same input.

    With `as_id`, the new run has that id; if this run was already restarted with that id and the same input, the
    earlier run is returned. `changes` are arguments by name that replace those of the input; the actor needs the
    permission to edit inputs too. Raises RunConflictError if another run has the id, or the earlier one another input,
    and ValueError or PayloadError for changes that do not fit.
    """
    require_step("restarting a run", "restart it in a step")
    at = runtime.current()
    action = "edit_input" if changes else "restart"
    with audited(at, action, run_id) as attribution, at.store.transaction():
        if changes and attribution.acting is not None:
            attribution.acting.check("restart")
        old = attribution.lock()
        check_not_an_order(old.workflow, "restart")
        wanted = successor(at, old, as_id)
        if changes:
            given = edited(old.workflow, _input_of(at, old), changes)
            wanted.input = at.encode(given, f"the input of {old.workflow}", Place(wanted.id, "input"))
        [(new, is_new)] = at.store.create([wanted])
        attribution.check_sees(new.id)
        # Only the names: users who may not see payloads can read the log.
        other = f", with another {', '.join(sorted(changes))}" if changes else ""
        detail = f"as run {new.id}{other}"
        if not is_new:
            check_is_successor(new, old)
            acting = attribution.acting
            if changes and acting is not None and not acting.may_compare(old.id, ("edit_input",), detail):
                problem = (
                    "and may have another input; the permission durable.view_payload is needed to learn whether it has"
                )
                raise RunConflictError(new.id, problem)
            if new.input != wanted.input and _input_of(at, new) != _input_of(at, wanted):
                raise RunConflictError(new.id, f'and was restarted from run "{old.id}" with another input')
            detail += ": was there already"
        at.store.log([attribution.done(before=old.state, after=old.state, detail=detail)])
    if is_new:
        at.notify({new.queue})
        send_run_changed(at, [new], previous="")
    return Started(new.id, is_new)


def successor(at: Runtime, old: RunRecord, run_id: str | None, **columns: Any) -> NewRun:
    """Return a new run that replaces `old`: same workflow, queue, input and rank; renewed limits; due now.

    It has the tags that the start of `old` gave, and is about the same.
    """
    now = at.now()
    chosen = new_id() if run_id is None else check_id(run_id)
    return NewRun(
        id=chosen,
        workflow=old.workflow,
        queue=old.queue,
        input=at.copied(old.input, Place(old.id, "input"), Place(chosen, "input")),
        created_at=now,
        parent_id=running_run(),
        replay_of_id=old.id,
        carried=old.carried,
        **inherited(at.store, old.id, now),
        **started(now),
        **columns,
    )


def check_is_successor(found: RunRecord, old: RunRecord) -> None:
    """Raise RunConflictError if the run with this id was not created to replace `old`."""
    if found.replay_of_id != old.id:
        raise RunConflictError(found.id, f'and does not come from run "{old.id}"')
