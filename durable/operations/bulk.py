"""Apply one verb to many runs: count the eligible runs, and perform one operation for each run.

Few runs are processed at once. Many are processed by an ordinary run of the workflow `durable.bulk`, so that operators
can see its progress, pause it and cancel it. Either way each run is decided and logged separately: a refusal for one
run does not stop the others. The permission of the requesting user is checked again when the verb is performed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from django.contrib.auth import get_user_model

from durable import runtime
from durable.core import registry
from durable.core.current import running_run
from durable.operations import audit
from durable.operations.audit import Actor, Outcome, acting_as
from durable.operations.audited import REFUSALS, audited, outcome_of
from durable.operations.common import BULK
from durable.operations.lifecycle import ALLOWED, cancel, pause, recover, resume, wake
from durable.operations.start import StartRequest, announce_started, put

__all__ = [
    "AT_ONCE",
    "MAX_COUNTED",
    "BulkOrder",
    "BulkReport",
    "BulkResult",
    "Eligibility",
    "Ids",
    "Selection",
    "apply",
    "eligible",
    "perform_page",
]

AT_ONCE: Final = 100  # runs that are processed while the operator waits
MAX_COUNTED: Final = 1_000  # runs of a selection that are examined to count the eligible ones
MAX_LOOKS: Final = 20  # pages that are fetched to count them: a page of a selection may hold few runs
PAGE: Final = 50  # runs in one step of a background bulk: one transaction
SHOWN: Final = 10  # ids

_VERBS: Final = {"cancel": cancel, "pause": pause, "recover": recover, "resume": resume, "wake": wake}
_OPTIONS: Final = {"cancel": {"rollback"}, "wake": {"end_sleeps"}}


class Selection(Protocol):
    """A selection of runs, read page by page.

    A background bulk records it in a run's input, so the codec must encode it.
    """

    @property
    def total(self) -> int | None:
        """The number of runs, if it is known without a query."""

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids after `cursor` (None: from the start), and the next cursor, None at the end.

        One query whose cost does not grow with the table.
        """


@dataclass(frozen=True, slots=True)
class Ids:
    """A selection of runs by their ids."""

    ids: tuple[str, ...]

    @property
    def total(self) -> int | None:
        """The number of ids."""
        return len(self.ids)

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return the ids from a position on."""
        begin = 0 if cursor is None else int(cursor)
        end = begin + limit
        return self.ids[begin:end], str(end) if end < len(self.ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """The number of selected runs that allow a verb now.

    `looked_at` is the number of runs that were examined; `is_capped` says that there are more. `shown` holds the first
    few eligible ids.
    """

    count: int
    looked_at: int
    is_capped: bool
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The result for one run: an `Outcome` and, if nothing was done, the reason."""

    run_id: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkReport:
    """The report of a bulk: the result for each run, or the id of the background run that processes many runs."""

    results: tuple[BulkResult, ...] = ()
    run_id: str | None = None

    @property
    def done(self) -> int:
        """The number of runs for which the verb succeeded."""
        return sum(each.outcome == Outcome.DONE for each in self.results)

    @property
    def refused(self) -> tuple[BulkResult, ...]:
        """The results of the runs for which the verb was refused."""
        return tuple(each for each in self.results if each.outcome != Outcome.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """The input of `durable.bulk`: the verb, the selection, the reason and the requesting user.

    `user` is the user's key, or None if no user requested the bulk.
    """

    verb: str
    selection: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    source: str = "code"
    user: Any = None
    label: str = ""


def eligible(verb: str, selection: Selection | Iterable[str]) -> Eligibility:
    """Count the selected runs that allow `verb` now; examines no more than MAX_COUNTED. Raises ValueError."""
    _check_verb(verb, {})
    allowed, store = ALLOWED[verb], runtime.current().store
    chosen = _as_selection(selection)
    count, looked_at, shown = 0, 0, list[str]()
    cursor: str | None = None
    for _ in range(MAX_LOOKS):
        ids, cursor = chosen.page(cursor, min(PAGE * 4, MAX_COUNTED - looked_at))
        states = store.states(ids)
        matching = [each for each in ids if states.get(each) in allowed]
        count += len(matching)
        looked_at += len(ids)
        shown += matching[: SHOWN - len(shown)]
        if cursor is None or looked_at >= MAX_COUNTED:
            break
    return Eligibility(count=count, looked_at=looked_at, is_capped=cursor is not None, shown=tuple(shown))


def apply(
    verb: str,
    selection: Selection | Iterable[str],
    *,
    in_background: bool | None = None,
    as_id: str | None = None,
    **options: Any,
) -> BulkReport:
    """Apply `verb` to each of the runs; `options` are the verb's own: `rollback` of cancel, `end_sleeps` of wake.

    The current actor (`durable.acting_as`) acts on each run, for the reason given there. More than AT_ONCE runs, or a
    selection of unknown size, are processed in the background, unless `in_background` decides. The background run has
    the id `as_id`; a bulk that already has this id is not started again. Raises ValueError, TypeError, RunConflictError
    if the id belongs to another run, and OperationDeniedError if the actor lacks the permission for the verb.
    """
    _check_verb(verb, options)
    chosen = _as_selection(selection)
    if in_background is None:
        in_background = chosen.total is None or chosen.total > AT_ONCE
    if in_background:
        return BulkReport(run_id=_start(verb, chosen, options, as_id))
    with audited(runtime.current(), verb, ""):
        pass  # an actor without the permission gets one refusal, not one for each run
    results: list[BulkResult] = []
    cursor: str | None = None
    while True:
        ids, cursor = chosen.page(cursor, AT_ONCE)
        results += [_one(verb, each, options) for each in ids]
        if cursor is None:
            return BulkReport(results=tuple(results))


def perform_page(order: BulkOrder, cursor: str | None) -> tuple[list[BulkResult], str | None]:
    """Process the next page of a background bulk. Return the results and the next cursor, None at the end."""
    ids, after = order.selection.page(cursor, PAGE)
    own = running_run()
    with acting_as(_actor(order), reason=order.reason):
        # Sort the ids, so that transactions lock the rows of several runs in one order and cannot deadlock.
        return [_one(order.verb, each, order.options) for each in sorted(ids) if each != own], after


def _one(verb: str, run_id: str, options: Mapping[str, Any]) -> BulkResult:
    try:
        _VERBS[verb](run_id, **options)
    except REFUSALS as error:
        return BulkResult(run_id=run_id, outcome=str(outcome_of(error)), detail=str(error))
    return BulkResult(run_id=run_id, outcome=str(Outcome.DONE))


def _start(verb: str, selection: Selection, options: dict[str, Any], as_id: str | None) -> str:
    at, bulk = runtime.current(), registry.get(BULK)
    acting = audit.acting()
    actor = audit.code_actor() if acting is None else acting.actor
    order = BulkOrder(
        verb=verb,
        selection=selection,
        options=options,
        reason=audit.reason(),
        source=actor.source,
        user=None if actor.user is None else actor.user.pk,
        label=actor.label,
    )
    request = StartRequest(workflow=bulk.name, signature=inspect.signature(bulk.function), queue=bulk.queue)
    with audited(at, verb, "") as attribution, at.store.transaction():
        found = None if as_id is None else at.store.get(as_id)
        if found is not None and found.workflow == bulk.name:
            return found.id  # the bulk was requested twice; a filter by time differs by now
        created = put(at, request, [(as_id, (order,), {})])
        [(run, _)] = created
        many = "runs" if selection.total is None else f"{selection.total:,} runs"
        at.store.log(
            [attribution.done(before="", after=run.state, run_id=run.id, detail=f"{verb} {many}, by this run")]
        )
    announce_started(at, created)
    return run.id


def _actor(order: BulkOrder) -> Actor:
    """Return the requesting user as the database has it now; a user who was deleted may do nothing."""
    if order.user is None and order.source in ("cli", "code"):
        return Actor(order.source, label=order.label)
    from django.contrib.auth.models import AnonymousUser  # models cannot be imported before the apps are loaded

    user = get_user_model()._default_manager.filter(pk=order.user).first()
    return Actor(order.source, user or AnonymousUser(), order.label)


def _as_selection(selection: Selection | Iterable[str]) -> Selection:
    if isinstance(selection, str):
        raise TypeError(f"the runs of a bulk are a list of ids, not text: write [{selection!r}]")
    if not isinstance(selection, Iterable):
        return selection
    ids = tuple(dict.fromkeys(selection))
    for each in ids:
        if not isinstance(each, str):
            raise TypeError(f"the runs of a bulk are ids, which are text, not {each!r}: write [run.id for run in ...]")
    return Ids(ids)


def _check_verb(verb: str, options: Mapping[str, Any]) -> None:
    if verb not in _VERBS:
        raise ValueError(f"unknown verb {verb!r}; choose from {', '.join(_VERBS)}")
    unknown = sorted(options.keys() - _OPTIONS.get(verb, set()))
    if unknown:
        raise TypeError(f"{verb} has no option {unknown[0]!r}")
