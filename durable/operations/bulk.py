"""One verb on many runs: how many of them it is for, and doing it, one operation for each run.

Few runs are done at once; many by an ordinary run of the workflow `durable.bulk`, so that its progress is seen, and it can
be paused and cancelled, like any run's. Either way each run is decided and logged by itself: what is refused for one
stops none of the others. The permission of whoever asked is checked again when it is done.
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

AT_ONCE: Final = 100  # runs that are done while the operator waits
MAX_COUNTED: Final = 1_000  # runs of a selection that are looked at to count the eligible ones
MAX_LOOKS: Final = 20  # pages that are asked for to count them: a selection may find little in each
PAGE: Final = 50  # runs of one step of a bulk in the background: one transaction
SHOWN: Final = 10  # ids

_VERBS: Final = {"cancel": cancel, "pause": pause, "recover": recover, "resume": resume, "wake": wake}
_OPTIONS: Final = {"cancel": {"rollback"}, "wake": {"end_sleeps"}}


class Selection(Protocol):
    """Which runs, page by page. In the background it is part of a run's input, and so has to encode."""

    @property
    def total(self) -> int | None:
        """How many runs there are, if that is known without looking for them."""

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Up to `limit` ids behind `cursor` (None: the first), and the cursor for the next page, None at the end.

        One query whose cost does not grow with the table.
        """


@dataclass(frozen=True, slots=True)
class Ids:
    """Runs by their ids."""

    ids: tuple[str, ...]

    @property
    def total(self) -> int | None:
        """How many there are."""
        return len(self.ids)

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """The ids from a position on."""
        begin = 0 if cursor is None else int(cursor)
        end = begin + limit
        return self.ids[begin:end], str(end) if end < len(self.ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """For how many of the selected runs a verb is allowed now.

    `looked_at` were looked at, and `is_capped` says that there are more than that. `shown` are the first few eligible.
    """

    count: int
    looked_at: int
    is_capped: bool
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What came of it for one run: an `Outcome` and, if nothing was done, why."""

    run_id: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkReport:
    """What came of a bulk: the result for each run, or, for many, the id of the run that does it in the background."""

    results: tuple[BulkResult, ...] = ()
    run_id: str | None = None

    @property
    def done(self) -> int:
        """For how many runs it was done."""
        return sum(each.outcome == Outcome.DONE for each in self.results)

    @property
    def refused(self) -> tuple[BulkResult, ...]:
        """The results of those for which it was not."""
        return tuple(each for each in self.results if each.outcome != Outcome.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """The input of `durable.bulk`: what is done to which runs, why, and for whom. `user` is the user's key, None if it
    was nobody's."""

    verb: str
    selection: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    source: str = "code"
    user: Any = None
    label: str = ""


def eligible(verb: str, selection: Selection | Iterable[str]) -> Eligibility:
    """For how many of the runs `verb` is allowed now; looks at no more than MAX_COUNTED. Raises ValueError."""
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
    """Do `verb` to each of the runs; `options` are the verb's own: `rollback` of cancel, `end_sleeps` of wake.

    Whoever acts (`durable.acting_as`) acts on each of them, for the reason given there. More than AT_ONCE runs, or runs of
    which nobody knows how many they are, are done in the background, unless `in_background` says. The run that does it has
    the id `as_id`: the bulk that has this id already is not ordered again. Raises ValueError, TypeError, RunConflictError
    if the id is another run's, and OperationDeniedError if the actor may not do this at all.
    """
    _check_verb(verb, options)
    chosen = _as_selection(selection)
    if in_background is None:
        in_background = chosen.total is None or chosen.total > AT_ONCE
    if in_background:
        return BulkReport(run_id=_start(verb, chosen, options, as_id))
    with audited(runtime.current(), verb, ""):
        pass  # whoever may not do it at all is told so once, not for each run
    results: list[BulkResult] = []
    cursor: str | None = None
    while True:
        ids, cursor = chosen.page(cursor, AT_ONCE)
        results += [_one(verb, each, options) for each in ids]
        if cursor is None:
            return BulkReport(results=tuple(results))


def perform_page(order: BulkOrder, cursor: str | None) -> tuple[list[BulkResult], str | None]:
    """The next runs of a bulk in the background: their results, and the cursor behind them, None at the end."""
    ids, after = order.selection.page(cursor, PAGE)
    own = running_run()
    with acting_as(_actor(order), reason=order.reason):
        # in the order in which commits lock the rows of several runs: so that neither waits for the other for ever
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
    with audited(at, verb, "") as by, at.store.transaction():
        found = None if as_id is None else at.store.get(as_id)
        if found is not None and found.workflow == bulk.name:
            return found.id  # ordered twice; a filter of times is another one by now
        created = put(at, request, [(as_id, (order,), {})])
        [(run, _)] = created
        many = "runs" if selection.total is None else f"{selection.total:,} runs"
        at.store.log([by.done(before="", after=run.state, run_id=run.id, detail=f"{verb} {many}, by this run")])
    announce_started(at, created)
    return run.id


def _actor(order: BulkOrder) -> Actor:
    """Whoever asked, as the database knows them now; a user who is gone may do nothing."""
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
        raise ValueError(f"a bulk knows the verbs {', '.join(_VERBS)}, not {verb!r}")
    unknown = sorted(options.keys() - _OPTIONS.get(verb, set()))
    if unknown:
        raise TypeError(f"{verb} has no option {unknown[0]!r}")
