"""The options of a start: its key, its rate, and everything else that `Workflow.using` takes, in the engine's units.

At most one open run of a workflow has a key.

With `when_full="drop"`, a start takes a unit of the rate in the transaction that creates the run. If the rate has no
room, the start is refused and nothing is created. A rollback gives the unit back. A start that finds an existing run,
by id or key, takes no unit and is never refused. A workflow's own rate also limits its passes: there the start reserves
the moment of the first pass, which uses that unit. So one run costs one unit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, ParamSpec, TypeVar, get_args

from django.utils.translation import gettext_lazy as _

from durable import runtime
from durable.conf import conf
from durable.core.duration import Duration, check_moment, later, parse_duration, parse_remaining
from durable.core.errors import KeyConflictError, StartRefusedError
from durable.core.ids import MAX_ID, check_key
from durable.core.limits.ranks import Ranking, check_share, check_weight, head_start, ranking_of
from durable.core.limits.rates import RateWant, RefusedStart, rate_wanted
from durable.core.limits.workflow_limits import WorkflowLimits
from durable.core.new_runs import MAX_KEY, How, Subject
from durable.core.places import Place
from durable.core.records import RunRecord, WhenParentEnds
from durable.core.tags import check_tags
from durable.core.time_limits import RunLimits
from durable.declared_limits import with_rate
from durable.instrumentation import observers
from durable.notifier import redis_clients
from durable.operations import lifecycle
from durable.operations.common import announce
from durable.operations.options import Deadline, Decimal, Id, Length, OneOf, Option, Tags, Text
from durable.runtime import Runtime
from durable.tag_hashes import stored_tags

IfOpen = Literal["return", "error", "replace"]
Keep = Literal["last", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """A start waits `delay` seconds, and each further start renews the wait, until `at_most` seconds after the first.

    `keep`: the run gets the input of the last start, or of the first.
    """

    delay: float
    at_most: float
    keep: Keep = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """A key, and what a start does if a run with it is open.

    With `if_open` None the open run is returned; with a debounce, one that has begun is left alone, and another begins.
    """

    key: str
    if_open: IfOpen | None = None
    debounce: Debounce | None = None

    @property
    def returns_open(self) -> bool:
        """Whether a start returns the open run unchanged, whatever the run does."""
        return self.debounce is None and self.if_open != "replace"


def key_options(
    key: str | None, *, if_open: IfOpen | None, debounce: float | None, at_most: float | None, keep: Keep | None
) -> KeyOptions | None:
    """Return the key options in these arguments of `Workflow.using`; None without a key.

    Raises TypeError for an option that needs another, and ValueError for an `at_most` below the debounce.
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
    """Create the run; or return, with False, the run that has its id, or else the open run that has the key.

    `check_sees` is called with the id of an open run that is about to be replaced, moved or left alone; it raises if
    the actor may not see that run. Raises KeyConflictError for an open run and `if_open="error"`, and the errors of
    `cancel` if the open run is to be replaced.
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
    """Return the open run of the workflow that has the key, or None."""
    return runtime.current().store.key_holder(workflow, check_key(key))


def _left(at: Runtime, holder: RunRecord, wanted: RunRecord, options: KeyOptions) -> RunRecord | None:
    """Apply the options to the locked run that has the key. Return that run, or None if another one has to begin."""
    if options.debounce is not None and holder.started_at is None and not _is_child(at, holder):
        limits = at.store.limits(holder.id) if holder.fence else None  # those of a new run are in force from fence 1
        if limits is None or limits.excess(at.now(), 0.0) is None:
            return _moved(at, holder, wanted, options, limits)
    if options.if_open == "replace":
        lifecycle.cancel(holder.id, reason=f'replaced by run "{wanted.id}", which was started with its key')
        at.store.free_key(holder.id, for_good=False)
        return None
    if options.if_open is not None:
        return _returned(holder, options)
    at.store.free_key(holder.id, for_good=True)
    return None


def _is_child(at: Runtime, run: RunRecord) -> bool:
    """Return whether another run has started this one as its child, and waits for what its own arguments give."""
    return run.parent_id is not None and bool(at.store.children([run.id]))


def _returned(holder: RunRecord, options: KeyOptions) -> RunRecord:
    if options.if_open == "error":
        raise KeyConflictError(holder.id, options.key)
    return holder


def _moved(
    at: Runtime, holder: RunRecord, wanted: RunRecord, options: KeyOptions, limits: RunLimits | None
) -> RunRecord:
    """Merge the start into a run that has not begun: that one begins later, but is due at its deadline, and, if so
    chosen, gets the newer input.
    """
    debounce = options.debounce
    assert debounce is not None
    now = at.now()
    first = at.store.keys([holder.id])[holder.id].taken_at
    latest = later(first, timedelta(seconds=debounce.at_most), "at_most")
    wake_at = min(later(now, timedelta(seconds=debounce.delay), "a debounce"), max(latest, now))
    if limits is not None:
        wake_at = limits.wake_at(wake_at) or wake_at
    newer = None
    if debounce.keep == "last":
        newer = at.copied(wanted.input, Place(wanted.id, "input"), Place(holder.id, "input"))
    moved = at.store.move(holder, now=now, wake_at=wake_at, input=newer)
    announce(at, moved.queue, moved.wake_at)
    return moved


WhenFull = Literal["drop"]
WhenDeleted = Literal["leave", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRate:
    """The rate from which a start takes a unit: the one that it names, or else that of its workflow's limit."""

    named: RateWant | None
    limits: WorkflowLimits | None

    def wanted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[RateWant, bool]:
        """Return the unit that a start with these arguments takes, and whether its first pass uses the same unit."""
        own = [] if self.limits is None else self.limits.rates(args, kwargs)
        if self.named is None:
            return own[0], True
        is_own = any((each.limit, each.key) == (self.named.limit, self.named.key) for each in own)
        return self.named, is_own


def start_rate(rate: str | None, when_full: WhenFull | None, limits: WorkflowLimits | None) -> StartRate | None:
    """Return the rate in these arguments of `Workflow.using`; None for a start that no rate can refuse.

    Raises TypeError for an option that needs another, and ValueError for an invalid one.
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
    """Take a unit for each of these new runs, all or none, in the transaction that created them.

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

P = ParamSpec("P")
T = TypeVar("T")


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


def _about(about: Any) -> tuple[Subject, ...]:
    from durable.models.subjects import checked_subjects  # few processes need it

    return checked_subjects(about)


def _among(name: str, choices: object) -> Callable[[T], T]:
    allowed = get_args(choices)

    def read(value: T) -> T:
        if value not in allowed:
            raise ValueError(f"{name} is one of {', '.join(map(repr, allowed))}, not {value!r}")
        return value

    return read


def _parent_ends(when: str) -> WhenParentEnds:
    if when not in tuple(WhenParentEnds):
        raise ValueError(f'when_parent_ends is "cancel" or "leave", not {when!r}')
    return WhenParentEnds(when)


def _on_conflict(given: str) -> str:
    if given not in ("return", "error"):
        raise ValueError(f'on_conflict is "return" or "error", not {given!r}')
    return given


def _seconds(what: str) -> Callable[[Duration], float]:
    return lambda given: parse_remaining(given, what).total_seconds()


def _option(kind: Callable[P, Option], *args: P.args, **said: P.kwargs) -> Any:
    """Return the field of an option of a start, which has its name. Its default is None unless given."""
    declared = kind(*args, **said)
    return field(default=None if declared.is_required else declared.default, metadata={"option": declared})


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The arguments of `Workflow.using`, as read: each with its words, the same on every surface, and the function that
    reads its value.

    `delay` and `work_limit` are in seconds; `deadline` is a length or a moment.
    """

    id: str | None = _option(
        Id,
        label=_("Id of the run"),
        help=_("Empty for a new one. A run that has the id already is found, if its arguments are the same."),
        does="The same id with the same input again is the same run.",
        on_shell="the run's id; a run that has it and the same input is left as it is",
    )
    queue: str | None = _option(
        Text,
        label=_("Queue"),
        help=_("Empty: the workflow's own."),
        does="One of the project's RQ_QUEUES.",
        on_shell="another queue than the workflow's",
        metavar="NAME",
    )
    delay: float = _option(
        Length,
        label=_("Delay"),
        help=_('Until it begins: "3 hours". Empty: it begins at once.'),
        does='Seconds, or a text such as "3 hours".',
        on_shell='"10 minutes", say',
        default=0.0,
        read=_seconds("a delay"),
    )
    deadline: timedelta | datetime | None = _option(
        Deadline,
        label=_("Deadline"),
        help=_(
            'When it fails if it has not ended: "30 days" from now, or a time such as 2027-05-01 12:30 in this page\'s zone.'
        ),
        does='When the run fails if it has not ended: seconds or a text such as "30 days" from now, or a time.',
        on_shell='the run fails if it has not ended by then: "30 days" from now, or an ISO 8601 time',
        read=_deadline,
    )
    work_limit: float | None = _option(
        Length,
        label=_("Work limit"),
        help=_('How long workers may work on it, without its waits: "1 hour". Empty: no limit.'),
        does='For how long workers may work on it, without its waits: seconds, or "1 hour".',
        on_shell='the run fails once workers have worked on it for so long, its waits not counted: "1 hour"',
        read=_work_limit,
    )
    on_conflict: Literal["return", "error"] = _option(
        OneOf,
        words={"return": "", "error": ""},
        does="What an id that exists means.",
        on_shell="refuse an id that exists",
        default="return",
        read=_on_conflict,
    )
    key: str | None = _option(
        Text,
        shortest=1,
        label=_("Key"),
        help=_("At most one open run of the workflow has it."),
        does="At most one open run of the workflow has it.",
        on_shell="at most one open run of the workflow has it; by default that run is printed",
        read=check_key,
    )
    if_open: IfOpen | None = _option(
        OneOf,
        words={
            "": _("the workflow's own choice"),
            "return": _("show that run, start none"),
            "error": _("refuse the start"),
            "replace": _("cancel that run, and start this one"),
        },
        label=_("If a run with the key is open"),
        does="What an open run with the key means: it is returned, refuses the start, or is cancelled.",
        on_shell="what an open run with the key means; replace: it is cancelled",
        read=_among("if_open", IfOpen),
        needs=(("key", _("Give the key that the choice below is about.")),),
    )
    debounce: float | None = _option(
        Length,
        label=_("Debounce"),
        help=_('The run begins so long after this start, and after each further one with its key: "5 minutes".'),
        does="The run begins so long after this start, and after each further one with its key: seconds, or a text.",
        on_shell="the run begins so long after this start, and after each further one with its key",
        read=_seconds("a debounce"),
        needs=(
            ("key", _("Give the key that the debounce is about.")),
            ("at_most", _("Say when the run begins at the latest.")),
        ),
    )
    at_most: float | None = _option(
        Length,
        label=_("Debounce at most"),
        help=_('Needed with a debounce: so long after the first start at the latest, "1 hour".'),
        does="Needed with `debounce`: so long after the first start at the latest.",
        on_shell="with --debounce: so long after the first start at the latest",
        read=_seconds("at_most"),
        needs=(("debounce", _("Give the debounce that the choices below are about.")),),
    )
    keep: Keep | None = _option(
        OneOf,
        words={"": _("those of the last start"), "last": "", "first": _("those of the first start")},
        label=_("Whose arguments a debounced run has"),
        does="With `debounce`: whose input it has, the last by default.",
        on_shell="with --debounce: whose input the run has; default: last",
        read=_among("keep", Keep),
        needs=(("debounce", _("Give the debounce that the choices below are about.")),),
    )
    rate: str | None = _option(
        Text,
        shortest=1,
        longest=2 * MAX_ID + 1,
        label=_("Limit with a rate"),
        help=_('For the choice below: "reports", or "reports/acme". Empty: that of the workflow.'),
        does="With `when_full`: the limit, and its key behind a slash. By default that of the workflow's own limit.",
        on_shell="with --when-full: the limit, and its key behind a slash; default: the workflow's own",
        metavar="LIMIT",
        read=_rate,
        needs=(("when_full", _("Say what the start does if this rate has no room.")),),
    )
    when_full: WhenFull | None = _option(
        OneOf,
        words={"": _("do not ask"), "drop": _("refuse the start")},
        label=_("If the rate has no room"),
        does="`drop`: the start takes a unit of the rate, and is refused (429) if the rate has no room now.",
        on_shell="drop: the start takes a unit of the rate, and is refused if the rate has no room now",
        read=_among("when_full", WhenFull),
    )
    priority: Duration | None = _option(
        Text,
        shortest=1,
        longest=100,
        label=_("Priority"),
        help=_('A head start among the runs that are due: "10 min", or "-1 hour" to put it back.'),
        does='A head start among due runs: a name of the project\'s PRIORITIES, "10 min", or "-1 hour" to put it back.',
        on_shell="a head start among due runs: a name of the project's PRIORITIES or a duration; '--priority=-1 hour' puts it back",
        read=_priority,
    )
    share: str | None = _option(
        Text,
        shortest=1,
        label=_("Share"),
        help=_("A tenant's, say: runs of different shares of a queue take turns."),
        does="Runs of different shares of a queue take turns.",
        on_shell="a tenant, say: runs of different shares of a queue take turns",
        read=check_share,
    )
    weight: float | None = _option(
        Decimal,
        label=_("Weight"),
        help=_("Of its share: how often such runs have a turn, from 0.001 to 1000. Empty: 1."),
        does="With `share`: how often such runs have a turn, from 0.001 to 1000; 1 by default.",
        on_shell="with --share: how often such runs have a turn, from 0.001 to 1000; default: 1",
        read=check_weight,
        needs=(("share", _("Give the share that the weight is about.")),),
    )
    tags: Mapping[str, str] | None = _option(
        Tags,
        label=_("Tags"),
        help=_("By which the run is found: name=value, one a line, at most 8."),
        does="Names with values, text or numbers, by which the run is found; at most 8.",
        on_shell="a tag of the run, by which it is found; may be given again",
        read=check_tags,
    )
    about: tuple[Subject, ...] | None = _option(
        Text,
        shortest=3,
        longest=255 + 1 + MAX_KEY,
        label=_("About"),
        help=_("What the run is about, as app.model:key: shop.order:42."),
        does="What the run is about, as `app.model:key`: `shop.order:42`.",
        on_shell="what the run is about: shop.order:42",
        metavar="MODEL:KEY",
        read=_about,
    )
    when_deleted: WhenDeleted | None = _option(
        OneOf,
        words={"": _("the run goes on"), "leave": "", "cancel": _("cancel the run")},
        label=_("When that is deleted"),
        does="With `about`: `cancel` cancels the run when what it is about is deleted; by default it goes on.",
        on_shell="with --about: what becomes of the open run when what it is about is deleted; default: leave",
        read=_among("when_deleted", WhenDeleted),
        needs=(("about", _("Say what the run is about, whose deletion the choice below is about.")),),
    )
    when_parent_ends: WhenParentEnds | None = _option(Option, read=_parent_ends)
    rollback: bool | None = _option(Option)

    def changed(self, **given: Any) -> StartOptions:
        """Return these options, replaced by those of `READ` that are not None. Raises ValueError and TypeError."""
        return replace(self, **{name: READ[name](value) for name, value in given.items() if value is not None})

    @property
    def ranking(self) -> Ranking | None:
        """Return the ranking that a start asks for, or None. Raises TypeError for a weight without a share."""
        return ranking_of(self.priority, self.share, self.weight, conf.PRIORITIES)

    @property
    def how(self) -> How:
        """Return how the run is started. Raises as `ranking`."""
        return How(
            delay=self.delay if self.debounce is None else self.debounce,
            deadline=self.deadline,
            work_limit=self.work_limit,
            ranking=self.ranking,
            tags=stored_tags(self.tags) if self.tags else None,
            subjects=self._subjects,
        )

    @property
    def _subjects(self) -> tuple[Subject, ...]:
        about = self.about or ()
        if self.when_deleted is None:
            return about
        if not about:
            raise TypeError("using(when_deleted=...) needs about=... too: the instance whose deletion it is about")
        if self.when_deleted == "leave":
            return about
        from durable.operations.subjects import follow_deletions  # few processes need it

        for model in {each.model for each in about}:
            follow_deletions(model, is_declared=False)
        return tuple(replace(each, cancels=True) for each in about)

    def key_options(self) -> KeyOptions | None:
        """Return the key options of a start. Raises TypeError for options that do not go together."""
        if self.debounce is not None and self.delay:
            raise TypeError("using(delay=...) and using(debounce=...) both say when the run begins: leave one out")
        return key_options(self.key, if_open=self.if_open, debounce=self.debounce, at_most=self.at_most, keep=self.keep)


_OPTIONS: Final = tuple(
    replace(each.metadata["option"], name=each.name, default=each.default) for each in fields(StartOptions)
)
#: The options of a start from outside, the same on every surface.
START_OPTIONS: Final = tuple(each for each in _OPTIONS if each.does)
#: The options that only starts of children have.
OF_CHILDREN: Final = tuple(each for each in _OPTIONS if not each.does)
#: By option of `Workflow.using`, the function that reads its argument.
READ: Final[Mapping[str, Callable[[Any], Any]]] = {each.name: each.read for each in _OPTIONS}


def warn_of(queue: str) -> None:
    """Log a warning, once, if the settings lack a child's queue.

    The child is not refused, because a replay would ask again.
    """
    if conf.REDIS and queue not in (known := redis_clients.queue_names()):
        _warn_of(queue, tuple(known))


@lru_cache(maxsize=100)
def _warn_of(queue: str, known: tuple[str, ...]) -> None:
    text = 'RQ_QUEUES lacks the queue "%s", and has %s: children that are started on it wait for a worker'
    logger.warning(text, queue, ", ".join(known) or "none")
