"""Apply one verb to many runs: count the eligible runs, and perform one operation for each run. Recover a run's failed
children, and then the run, in this way.

Up to AT_ONCE runs are processed by the caller. More are processed by an ordinary run of the workflow `durable.bulk`, so
that operators can see its progress, pause it and cancel it; as is a bulk with a canary or a rate. Either way each run
is decided and logged separately: a refusal for one run does not stop the others. The audit log has one row for the
bulk, and the rows of its runs refer to it. The permission of the requesting user is checked again when the verb is
performed.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django.contrib.auth import get_user_model

from durable import runtime
from durable.core import registry
from durable.core.current import running_run
from durable.core.ids import check_id, new_id
from durable.core.records import ActionOutcome, RunState
from durable.core.registry import BULK, replays_prefix
from durable.core.tally import GivenIds
from durable.operations import audit
from durable.operations.audit import REFUSALS, Actor, acting_as, audited, outcome_of
from durable.operations.bulk_decisions import Canary
from durable.operations.common import in_async
from durable.operations.eligibility import (
    MAX_COUNTED,
    Countable,
    Eligibility,
    Narrowed,
    Selection,
    allowed_states,
    check_expected,
    count,
    place_of,
)
from durable.operations.options import Option, Text
from durable.operations.queries import children, record
from durable.operations.replay import replay_failed
from durable.operations.start import StartRequest, announce_started, put
from durable.operations.verbs import BULK_ACTIONS, PLACE, RUN_VERBS

__all__ = [
    "AT_ONCE",
    "BULK_OPTIONS",
    "BULK_VERBS",
    "MAX_COUNTED",
    "BulkOrder",
    "BulkReport",
    "BulkResult",
    "Canary",
    "Eligibility",
    "Ids",
    "Selection",
    "aapply",
    "aeligible",
    "allowed_states",
    "apply",
    "eligible",
    "grouped",
    "options_of",
    "perform_page",
    "replay_as_part",
]

AT_ONCE: Final = 100  # runs that are processed while the operator waits
PAGE: Final = 50  # runs in one step of a background bulk: one transaction
_RATES: Final = (0.001, 1_000.0)  # runs a second


def replay_as_part(run_id: str) -> str:
    """Replay the run as part of a bulk, under an id that repetitions share; return that id."""
    digest = hashlib.sha256(run_id.encode(errors="surrogatepass")).hexdigest()[:20]
    return replay_failed(run_id, as_id=f"{replays_prefix(audit.bulk_id())}{digest}").id


_VERBS: Final[Mapping[str, Callable[..., str | None]]] = {
    each: replay_as_part if each == "replay" else RUN_VERBS[each].call_of_many or RUN_VERBS[each].call
    for each in sorted(BULK_ACTIONS)
}
BULK_VERBS: Final = tuple(_VERBS)

#: The options of each verb that has any, by their names.
BULK_OPTIONS: Final[Mapping[str, Mapping[str, Option]]] = {
    each: {option.name: option for option in RUN_VERBS[each].of_many} for each in _VERBS if RUN_VERBS[each].of_many
}


def options_of(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given options that belong to the verb and say something."""
    return {
        name: given[name]
        for name, option in BULK_OPTIONS.get(verb, {}).items()
        if name in given and option.is_said(given[name])
    }


@dataclass(frozen=True, slots=True)
class Ids(GivenIds):
    """A selection of runs given by ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The result for one run: an `ActionOutcome` and, if nothing was done, the reason.

    `new_id` is the run that continues in place of this one, or "".
    """

    run_id: str
    outcome: str
    detail: str = ""
    new_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkReport:
    """The report of a bulk: the result for each run, or the id of the background run that processes many runs.

    `bulk_id` is the bulk's id in the audit log: the background run's id if there is one.
    """

    results: tuple[BulkResult, ...] = ()
    run_id: str | None = None
    bulk_id: str = ""

    @property
    def done(self) -> int:
        """The number of runs for which the verb succeeded."""
        return sum(each.outcome == ActionOutcome.DONE for each in self.results)

    @property
    def refused(self) -> tuple[BulkResult, ...]:
        return tuple(each for each in self.results if each.outcome != ActionOutcome.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """The input of `durable.bulk`: the verb, the selection, the reason and the requesting user.

    `user` is the user's key, or None if no user requested the bulk. `total` is the number of runs that allowed the verb
    when it was requested, None if the count was cut off. `rate` is in runs a second.
    """

    verb: str
    selection: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    source: str = "code"
    user: Any = None
    label: str = ""
    total: int | None = None
    canary: Canary | None = None
    rate: float | None = None

    @property
    def page_size(self) -> int:
        """The number of runs that are processed before the next pause: those of a second, if there is a rate."""
        return PAGE if self.rate is None else max(1, min(PAGE, int(self.rate)))

    def pause_after(self, count: int) -> float | None:
        """The seconds to wait after `count` runs so that the rate is kept; None without a rate."""
        return None if self.rate is None or not count else count / self.rate


def eligible(verb: str, selection: Selection | Iterable[str]) -> Eligibility:
    """Count the selected runs that allow `verb` now, up to MAX_COUNTED of them. Raises ValueError."""
    _check_known(verb)
    return count(verb, _as_selection(selection))


def apply(
    verb: str,
    selection: Selection | Iterable[str],
    *,
    in_background: bool | None = None,
    as_id: str | None = None,
    expected: int | None = None,
    canary: Canary | None = None,
    rate: float | None = None,
    **options: Any,
) -> BulkReport:
    """Apply `verb` to each of the runs.

    `options` are the verb's own, which BULK_OPTIONS names. The current actor (`acting_as`) acts on each run, for the
    reason given there. More than AT_ONCE runs, or a selection of unknown size, are processed in the background, unless
    `in_background` decides: so `aapply` keeps a loop's other synchronous code waiting for at most AT_ONCE runs. The
    background run has the id `as_id`; a bulk that already has this id is not started again.

    `expected` is the number of runs that `eligible` found. If another number allows the verb by now, nothing is done.

    With a `canary`, the verb is applied to the first runs alone, and the bulk stops if they fail
    (`durable.operations.bulk_decisions`). With a `rate`, at most so many runs are processed in a second. Both are done
    in the background.

    Raises ValueError, also for a grave verb on a selection that nothing limits; TypeError; BulkCountError if the number
    is not the expected one; RunConflictError if the id belongs to another run; and OperationDeniedError if the actor
    lacks the permission for the verb.
    """
    _check_verb(verb, options)
    _check_rate(rate)
    chosen = _as_selection(selection)
    if PLACE.name in BULK_OPTIONS.get(verb, ()) and not options.get(PLACE.name) and (place := place_of(chosen)):
        options[PLACE.name] = place
    if RUN_VERBS[verb].is_grave and isinstance(chosen, Countable) and chosen.is_everything:
        raise ValueError(f"{verb} cannot be taken back, and these are all runs: choose a workflow or a state first")
    is_slow = canary is not None or rate is not None
    if in_background is None:
        in_background = is_slow or chosen.total is None or chosen.total > AT_ONCE
    if is_slow and not in_background:
        raise ValueError("a bulk with a canary or a rate is done in the background")
    if in_background:
        started = _start(verb, chosen, options, as_id, expected, canary, rate)
        return BulkReport(run_id=started, bulk_id=started)
    results: list[BulkResult] = []
    cursor: str | None = None
    check = None if expected is None else partial(check_expected, verb, chosen, expected)
    with grouped(verb, chosen.total, as_id=as_id, check=check) as bulk_id:
        while True:
            ids, cursor = chosen.page(cursor, AT_ONCE)
            results += [_one(verb, each, options) for each in ids]
            if cursor is None:
                return BulkReport(results=tuple(results), bulk_id=bulk_id)


aeligible = in_async(eligible)
aapply = in_async(apply)


@contextmanager
def grouped(
    verb: str, total: int | None, *, as_id: str | None = None, check: Callable[[], None] | None = None
) -> Iterator[str]:
    """Log a bulk, and record the actions inside the block as its parts; yield its id.

    `total` is the number of its runs, None if it is not known. `check` is called before anything is logged and may
    refuse the bulk. Raises OperationDeniedError: an actor without the permission gets one refusal, not one for each
    run.
    """
    at, bulk_id = runtime.current(), new_id() if as_id is None else check_id(as_id)
    with audited(at, verb, "") as attribution:
        if check is not None:
            check()
        at.store.log([attribution.done(before="", after="", run_id=bulk_id, detail=_many(verb, total))])
    with ExitStack() as stack:
        if audit.acting() is None:  # refusals of the application's own code are logged too
            stack.enter_context(acting_as(audit.code_actor()))
        stack.enter_context(audit.within_bulk(bulk_id))
        yield bulk_id


def perform_page(order: BulkOrder, cursor: str | None, limit: int | None = None) -> tuple[list[BulkResult], str | None]:
    """Process the next page of a background bulk: at most `limit` runs.

    Return the results and the next cursor, None at the end.
    """
    ids, after = order.selection.page(cursor, PAGE if limit is None else limit)
    own = running_run()
    with ExitStack() as stack:
        stack.enter_context(acting_as(_actor(order), reason=order.reason))
        if own is not None:
            stack.enter_context(audit.within_bulk(own))
        # Sort the ids, so that transactions lock the rows of several runs in one order and cannot deadlock.
        return [_one(order.verb, each, order.options) for each in sorted(ids) if each != own], after


def _one(verb: str, run_id: str, options: Mapping[str, Any]) -> BulkResult:
    try:
        new_id = _VERBS[verb](run_id, **options)
    except REFUSALS as error:
        return BulkResult(run_id=run_id, outcome=str(outcome_of(error)), detail=str(error))
    return BulkResult(run_id=run_id, outcome=str(ActionOutcome.DONE), new_id=new_id or "")


def _start(
    verb: str,
    selection: Selection,
    options: dict[str, Any],
    as_id: str | None,
    expected: int | None,
    canary: Canary | None,
    rate: float | None,
) -> str:
    at, bulk = runtime.current(), registry.get(BULK)
    acting = audit.acting()
    actor = audit.code_actor() if acting is None else acting.actor
    total = selection.total
    if total is None:
        found = count(verb, selection)
        total = None if found.is_capped else found.count
    if isinstance(selection, Narrowed):  # the other runs are skipped, not refused one by one
        selection = selection.narrowed(allowed_states(verb))
    order = BulkOrder(
        verb=verb,
        selection=selection,
        options=options,
        reason=audit.reason(),
        source=actor.source,
        user=None if actor.user is None else actor.user.pk,
        label=actor.label,
        total=total,
        canary=canary,
        rate=rate,
    )
    queue = options["queue"] if verb == "move" else bulk.queue  # the queue from which runs are moved may have no worker
    request = StartRequest(workflow=bulk.name, signature=inspect.signature(bulk.function), queue=queue)
    with audited(at, verb, "") as attribution, at.store.transaction():
        if actor.is_rowless:
            raise audit.RowlessUserError(verb, actor.name)
        existing = None if as_id is None else at.store.get(as_id)
        if existing is not None and existing.workflow == bulk.name:
            return existing.id  # the bulk was requested twice; a filter by time has changed meanwhile
        if expected is not None:
            check_expected(verb, selection, expected)
        created = put(at, request, [(as_id, (order,), {})])
        [(run, _)] = created
        detail = f"{_many(verb, total)}, by this run"
        at.store.log([attribution.done(before="", after=run.state, run_id=run.id, detail=detail)])
    announce_started(at, created)
    return run.id


def _many(verb: str, total: int | None) -> str:
    return f"{verb} runs" if total is None else f"{verb} {total:,} run{'' if total == 1 else 's'}"


def _actor(order: BulkOrder) -> Actor:
    """Return the requesting user as stored now; a deleted user may do nothing."""
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


def _check_rate(rate: float | None) -> None:
    slowest, fastest = _RATES
    if rate is not None and not slowest <= rate <= fastest:
        raise ValueError(f"the rate of a bulk is {slowest:g} to {fastest:,g} runs a second, not {rate!r}")


def _check_known(verb: str) -> None:
    if verb not in _VERBS:
        raise ValueError(f"unknown verb {verb!r}; choose from {', '.join(_VERBS)}")


def _check_verb(verb: str, options: Mapping[str, Any]) -> None:
    _check_known(verb)
    known = BULK_OPTIONS.get(verb, {})
    if unknown := sorted(options.keys() - known.keys()):
        raise TypeError(f"{verb} has no option {unknown[0]!r}")
    for name, option in known.items():
        if option.is_required and name not in options:
            raise TypeError(f"{verb} needs the option {name!r}")
        if isinstance(option, Text) and option.check is not None:
            option.check(options[name])
    check = RUN_VERBS[verb].check
    if check is not None:
        check(**options)


@dataclass(frozen=True, slots=True)
class ChildrenFirst:
    """A selection of runs by ids: children and then, unless `parent` is "", their parent on a page of its own."""

    ids: tuple[str, ...]
    parent: str = ""

    @property
    def total(self) -> int | None:
        return len(self.ids) + bool(self.parent)

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return the ids from a position on; the parent comes after all children."""
        begin = 0 if cursor is None else int(cursor)
        if begin >= len(self.ids):
            return [self.parent] if self.parent else [], None
        end = min(begin + limit, len(self.ids))
        return self.ids[begin:end], str(end) if end < len(self.ids) or self.parent else None


def recover_children(
    run_id: str, group: str | None = None, *, canary: Canary | None = None, rate: float | None = None
) -> BulkReport:
    """Recover the run's failed children, of one group or all, and then the run if it has failed too.

    The current actor acts, as in `apply`, which describes `canary` and `rate`. More than 100
    runs are recovered in the background. Raises RunNotFoundError, and what `apply` raises.
    """
    failed = children(run_id, RunState.FAILED.value, group)
    parent = run_id if record(run_id).state == RunState.FAILED else ""
    return apply("recover", ChildrenFirst(tuple(failed), parent), canary=canary, rate=rate)
