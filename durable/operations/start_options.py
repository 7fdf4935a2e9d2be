"""The options of a start: its key, its rate, and all else that `Workflow.using` takes, in the units of the engine.

Under a key there is at most one open run of a workflow.

With `when_full="drop"` a start that makes a run takes a unit of the rate, in the transaction that creates the run. If
the rate has no room now, the start is refused and nothing is created. What is rolled back gives its unit back. A start
that finds a run, by its id or by its key, takes nothing and is never refused. A workflow's own rate limits the starts
of passes too: there the start reserves the moment of the first pass, which begins with that unit. So one run costs one
unit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, get_args

from durable import runtime
from durable.conf import conf
from durable.core.duration import Duration, check_moment, later, parse_duration, parse_remaining
from durable.core.errors import KeyConflictError, StartRefusedError
from durable.core.ids import check_key
from durable.core.limits.ranks import Ranking, check_share, check_weight, head_start, ranking_of
from durable.core.limits.rates import RateWant, RefusedStart, rate_wanted
from durable.core.limits.workflow_limits import WorkflowLimits
from durable.core.places import Place
from durable.core.records import RunRecord, WhenParentEnds
from durable.core.tags import check_tags
from durable.declared_limits import with_rate
from durable.instrumentation import observers
from durable.notifier import redis_clients
from durable.operations import lifecycle
from durable.operations.common import announce
from durable.runtime import Runtime
from durable.tag_hashes import stored_tags

IfOpen = Literal["return", "error", "replace"]
Keep = Literal["last", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """A start waits `delay` seconds, and each further one as long again, until `at_most` seconds after the first.

    `keep`: whose input the run has, that of the last start or of the first.
    """

    delay: float
    at_most: float
    keep: Keep = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """A key, and what a start does if a run that has it is open.

    `if_open` is None where nothing was said: the open run is returned; with a debounce, one that has begun is left
    alone, and another begins.
    """

    key: str
    if_open: IfOpen | None = None
    debounce: Debounce | None = None

    @property
    def returns_open(self) -> bool:
        """Whether an open run stays as it is, whatever it does."""
        return self.debounce is None and self.if_open != "replace"


def key_options(
    key: str | None, *, if_open: IfOpen | None, debounce: float | None, at_most: float | None, keep: Keep | None
) -> KeyOptions | None:
    """Return what these arguments of `Workflow.using` ask for, None without a key.

    Raises TypeError for one that needs another, ValueError for an `at_most` below the debounce.
    """
    if debounce is None:
        _check_unused("debounce", at_most=at_most, keep=keep)
    if key is None:
        _check_unused("key", if_open=if_open, debounce=debounce)
        return None
    if debounce is None:
        return KeyOptions(key=key, if_open=if_open)
    if at_most is None:
        raise TypeError(
            'using(debounce=...) needs at_most="5 min", say: starts that do not stop would put the run off for ever'
        )
    if at_most < debounce:
        raise ValueError(f"at_most ({at_most:g} s) must not be less than the debounce ({debounce:g} s)")
    return KeyOptions(key=key, if_open=if_open, debounce=Debounce(delay=debounce, at_most=at_most, keep=keep or "last"))


def _check_unused(needed: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise TypeError(f"using({name}=...) needs {needed}=... too")


def put(
    at: Runtime, wanted: RunRecord, options: KeyOptions, *, check_sees: Callable[[str], None] | None = None
) -> tuple[RunRecord, bool]:
    """Create the run, or return the run that has its id, or else the open one that has the key, and False.

    `check_sees` is called with the id of an open run that is about to be replaced, moved or left alone; it raises for
    one that the actor may not see. Raises KeyConflictError for an open run and `if_open="error"`, and what `cancel`
    raises where it is to be replaced.
    """
    found, is_new = at.store.start_keyed(wanted, options.key)
    if is_new or found.id == wanted.id:
        return found, is_new
    if options.returns_open:
        return _returned(found, options), False
    with at.store.transaction():
        while True:
            holder = at.store.key_holder(wanted.workflow, options.key, lock=True)
            if holder is not None and check_sees is not None:
                check_sees(holder.id)
            left = None if holder is None else _left(at, holder, wanted, options)
            if left is not None:
                return left, False
            found, is_new = at.store.start_keyed(wanted, options.key)
            if is_new or found.id == wanted.id:
                return found, is_new


def open_run(workflow: str, key: str) -> RunRecord | None:
    """Return the open run of the workflow that has the key, None if there is none."""
    return runtime.current().store.key_holder(workflow, check_key(key))


def _left(at: Runtime, holder: RunRecord, wanted: RunRecord, options: KeyOptions) -> RunRecord | None:
    """Do what the options say about the locked run that has the key; return it, or None if another one is to begin."""
    if options.debounce is not None and holder.started_at is None:
        return _moved(at, holder, wanted, options)
    if options.if_open == "replace":
        lifecycle.cancel(holder.id, reason=f'replaced by run "{wanted.id}", which was started with its key')
        at.store.free_key(holder.id, for_good=False)
        return None
    if options.if_open is not None:
        return _returned(holder, options)
    at.store.free_key(holder.id, for_good=True)
    return None


def _returned(holder: RunRecord, options: KeyOptions) -> RunRecord:
    if options.if_open == "error":
        raise KeyConflictError(holder.id, options.key)
    return holder


def _moved(at: Runtime, holder: RunRecord, wanted: RunRecord, options: KeyOptions) -> RunRecord:
    """Merge the start into a run that has not begun: it begins later, and has the newer input if that is kept."""
    debounce = options.debounce
    assert debounce is not None
    now = at.now()
    first = at.store.keys([holder.id])[holder.id].taken_at
    latest = later(first, timedelta(seconds=debounce.at_most), "at_most")
    wake_at = min(later(now, timedelta(seconds=debounce.delay), "a debounce"), max(latest, now))
    newer = None
    if debounce.keep == "last":
        newer = at.copied(wanted.input, Place(wanted.id, "input"), Place(holder.id, "input"))
    moved = at.store.move(holder, now=now, wake_at=wake_at, input=newer)
    announce(at, moved.queue, moved.wake_at)
    return moved


WhenFull = Literal["drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRate:
    """The rate of which a start takes a unit: the one that the start names, or else that of its workflow's limit."""

    named: RateWant | None
    limits: WorkflowLimits | None

    def wanted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[RateWant, bool]:
        """Return the unit that a start with these arguments takes, and whether its first pass takes the same one."""
        own = [] if self.limits is None else self.limits.rates(args, kwargs)
        if self.named is None:
            return own[0], True
        is_own = any((each.limit, each.key) == (self.named.limit, self.named.key) for each in own)
        return self.named, is_own


def start_rate(rate: str | None, when_full: WhenFull | None, limits: WorkflowLimits | None) -> StartRate | None:
    """Return what these arguments of `Workflow.using` ask for, None for a start that no rate refuses.

    Raises TypeError for one that needs another, and ValueError for what is none.
    """
    if when_full not in (None, "drop"):
        raise ValueError(f'when_full is "drop", not {when_full!r}: leave it out to let runs wait')
    if when_full is None:
        if rate is not None:
            raise TypeError(
                'using(rate=...) needs when_full="drop" too: runs that shall wait are those of a workflow with '
                "limit=Limit(..., rate=...)"
            )
        return None
    if rate is None and (limits is None or all(each.rate is None for each in limits.limits)):
        raise TypeError(
            'using(when_full="drop") needs rate="...", the name of a limit with a rate, or a workflow with '
            "limit=Limit(..., rate=...)"
        )
    return StartRate(named=None if rate is None else rate_wanted(rate), limits=limits)


def take_units(at: Runtime, runs: Sequence[tuple[RunRecord, RateWant, bool]]) -> None:
    """Take a unit for each of these new runs, in the transaction that has created them, all of them or none.

    Raises StartRefusedError, and UnknownLimitError for a limit without a rate.
    """
    now = at.now()
    for run, want, is_own in sorted(runs, key=lambda each: (each[1].limit, each[1].key)):  # keys are locked in order
        answer = at.store.reserve(run.id, run.fence, "", with_rate(want), now, may_begin=not is_own)
        if not answer.begins:
            raise StartRefusedError(run.workflow, run.id, want.limit, want.key, retry_at=answer.at)


def note_refused(at: Runtime, refusal: StartRefusedError) -> None:
    """Record a refused start, after the transaction that would have created its run."""
    start = RefusedStart(at=at.now(), workflow=refusal.workflow, run_id=refusal.run_id)
    at.store.note_refused(refusal.limit, refusal.key, start)
    observers.start_refused(refusal.limit)


logger = logging.getLogger("durable.operations")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The arguments of `Workflow.using`.

    `delay` and `work_limit` are in seconds; `deadline` is a length or a moment.
    """

    run_id: str | None = None
    queue: str | None = None
    delay: float = 0.0
    refuses_existing: bool = False
    deadline: timedelta | datetime | None = None
    work_limit: float | None = None
    when_parent_ends: WhenParentEnds | None = None
    rollback: bool | None = None
    key: str | None = None
    if_open: IfOpen | None = None
    debounce: float | None = None
    at_most: float | None = None
    keep: Keep | None = None
    rate: str | None = None
    when_full: WhenFull | None = None
    priority: Duration | None = None
    share: str | None = None
    weight: float | None = None
    tags: Mapping[str, str] | None = None

    def changed(self, **given: Any) -> StartOptions:
        """Return these options with those of `READ` that are not None. Raises ValueError and TypeError."""
        found = {name: READ[name](value) for name, value in given.items() if value is not None}
        return replace(self, **{_FIELDS.get(name, name): value for name, value in found.items()})

    @property
    def ranking(self) -> Ranking | None:
        """Return the rank that a start asks for, None for none. Raises TypeError for a weight without a share."""
        return ranking_of(self.priority, self.share, self.weight, conf.PRIORITIES)

    @property
    def stored_tags(self) -> dict[str, str] | None:
        """Return the tags that a start gives, as they are stored; None for none."""
        return stored_tags(self.tags) if self.tags else None

    def key_options(self) -> KeyOptions | None:
        """Return what a start does about the key. Raises TypeError for options that do not go together."""
        if self.debounce is not None and self.delay:
            raise TypeError("using(delay=...) and using(debounce=...) both say when the run begins: leave one out")
        return key_options(self.key, if_open=self.if_open, debounce=self.debounce, at_most=self.at_most, keep=self.keep)


def warn_of(queue: str) -> None:
    """Log a warning, once, if the settings lack the queue of a child: it is not refused, since a replay asks again."""
    if conf.REDIS and queue not in (known := redis_clients.queue_names()):
        _warn_of(queue, tuple(known))


@lru_cache(maxsize=100)
def _warn_of(queue: str, known: tuple[str, ...]) -> None:
    text = 'RQ_QUEUES lacks the queue "%s", and has %s: children that are started on it wait for a worker'
    logger.warning(text, queue, ", ".join(known) or "none")


def _priority(priority: Duration) -> Duration:
    head_start(priority, conf.PRIORITIES)
    return priority


def _deadline(deadline: Duration | datetime) -> timedelta | datetime:
    if isinstance(deadline, datetime):
        return check_moment(deadline, "a deadline")
    return parse_remaining(deadline, "a deadline")


def _work_limit(limit: Duration) -> float:
    seconds = parse_duration(limit, "a work limit").total_seconds()
    if seconds <= 0:
        raise ValueError(f"a work limit must be longer than zero, not {limit!r}: leave it out for none")
    return seconds


def _rate(label: str) -> str:
    rate_wanted(label)
    return label


def _one_of(name: str, value: T, choices: object) -> T:
    allowed = get_args(choices)
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


def _parent_ends(when: str) -> WhenParentEnds:
    if when not in tuple(WhenParentEnds):
        raise ValueError(f'when_parent_ends is "cancel" or "leave", not {when!r}')
    return WhenParentEnds(when)


def _refuses(on_conflict: str) -> bool:
    if on_conflict not in ("return", "error"):
        raise ValueError(f'on_conflict is "return" or "error", not {on_conflict!r}')
    return on_conflict == "error"


def _seconds(what: str) -> Callable[[Duration], float]:
    return lambda given: parse_remaining(given, what).total_seconds()


#: By each option of `Workflow.using`, what makes of its argument the value of a start.
READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "id": lambda run_id: run_id,
    "queue": lambda given: given,
    "delay": _seconds("a delay"),
    "on_conflict": _refuses,
    "deadline": _deadline,
    "work_limit": _work_limit,
    "key": check_key,
    "if_open": lambda given: _one_of("if_open", given, IfOpen),
    "debounce": _seconds("a debounce"),
    "at_most": _seconds("at_most"),
    "keep": lambda given: _one_of("keep", given, Keep),
    "rate": _rate,
    "when_full": lambda given: _one_of("when_full", given, WhenFull),
    "when_parent_ends": _parent_ends,
    "rollback": lambda given: given,
    "priority": _priority,
    "share": check_share,
    "weight": check_weight,
    "tags": check_tags,
}
#: What `StartOptions` calls otherwise.
_FIELDS: Final = {"id": "run_id", "on_conflict": "refuses_existing"}

#: The options that are about a child and its parent: no start from outside has them.
OF_CHILDREN: Final = ("when_parent_ends", "rollback")

#: The other options. The admin, REST and the command line have all of them.
START_OPTIONS: Final = tuple(name for name in READ if name not in OF_CHILDREN)
