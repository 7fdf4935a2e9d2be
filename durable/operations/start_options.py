"""The options of a start: what `Workflow.using` takes, in the units of the engine."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args

from django.conf import settings

from durable.conf import conf
from durable.core.duration import Duration, check_moment, parse_duration, parse_remaining
from durable.core.ids import check_key
from durable.core.ranks import Ranking, check_share, check_weight, head_start, ranking_of
from durable.core.rates import rate_wanted
from durable.core.records import WhenParentEnds
from durable.core.tags import check_tags
from durable.operations.keys import IfOpen, Keep, KeyOptions, key_options
from durable.operations.start_rates import WhenFull
from durable.tag_hashes import stored_tags

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


def _known_queue(queue: str) -> str:
    """Return the queue. Log a warning, once, if the settings lack it: its runs wait until they have it."""
    if conf.REDIS and isinstance(queue, str) and queue not in (known := getattr(settings, "RQ_QUEUES", {})):
        _warn_of(queue, tuple(known))
    return queue


@lru_cache(maxsize=100)
def _warn_of(queue: str, known: tuple[str, ...]) -> None:
    nearest = difflib.get_close_matches(queue, known, n=1)
    advice = f'; did you mean "{nearest[0]}"?' if nearest else f", and has {', '.join(known) or 'none'}."
    logger.warning('RQ_QUEUES lacks the queue "%s"%s Runs that are started on it wait for a worker', queue, advice)


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
    "queue": _known_queue,
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
