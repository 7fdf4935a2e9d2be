"""The options of a start: what `Workflow.using` takes, in the units of the engine."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, get_args

from django.conf import settings

from durable.conf import conf
from durable.core.duration import Duration, check_moment, parse_duration, parse_remaining
from durable.core.ids import check_key
from durable.core.priorities import check_share, check_weight, head_start, ranking_of
from durable.core.ranks import Ranking
from durable.core.rates import rate_wanted
from durable.core.records import WhenParentEnds
from durable.core.tags import TagValue, check_tags
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

    def changed(
        self,
        *,
        id: str | None,
        queue: str | None,
        delay: Duration | None,
        on_conflict: Literal["return", "error"] | None,
        deadline: Duration | datetime | None,
        work_limit: Duration | None,
        key: str | None,
        if_open: IfOpen | None,
        debounce: Duration | None,
        at_most: Duration | None,
        keep: Keep | None,
        rate: str | None,
        when_full: WhenFull | None,
        when_parent_ends: Literal["cancel", "leave"] | None,
        rollback: bool | None,
        priority: Duration | None,
        share: str | None,
        weight: float | None,
        tags: Mapping[str, TagValue] | None,
    ) -> StartOptions:
        """Return these options with those that are not None. Raises ValueError and TypeError for what none can be."""
        changes: dict[str, Any] = {
            "run_id": id,
            "queue": None if queue is None else _known_queue(queue),
            "delay": None if delay is None else parse_remaining(delay, "a delay").total_seconds(),
            "refuses_existing": None if on_conflict is None else _refuses(on_conflict),
            "deadline": None if deadline is None else _deadline(deadline),
            "work_limit": None if work_limit is None else _work_limit(work_limit),
            "key": None if key is None else check_key(key),
            "if_open": None if if_open is None else _one_of("if_open", if_open, IfOpen),
            "debounce": None if debounce is None else parse_remaining(debounce, "a debounce").total_seconds(),
            "at_most": None if at_most is None else parse_remaining(at_most, "at_most").total_seconds(),
            "keep": None if keep is None else _one_of("keep", keep, Keep),
            "rate": None if rate is None else _rate(rate),
            "when_full": None if when_full is None else _one_of("when_full", when_full, WhenFull),
            "when_parent_ends": None if when_parent_ends is None else _parent_ends(when_parent_ends),
            "rollback": rollback,
            "priority": None if priority is None else _priority(priority),
            "share": None if share is None else check_share(share),
            "weight": None if weight is None else check_weight(weight),
            "tags": None if tags is None else check_tags(tags),
        }
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

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


#: The options of `Workflow.using` that are about a child and its parent: no start from outside has them.
OF_CHILDREN: Final = ("when_parent_ends", "rollback")

#: The other options of `Workflow.using`. The admin, REST and the command line have all of them.
START_OPTIONS: Final = tuple(
    name for name in inspect.signature(StartOptions.changed).parameters if name not in ("self", *OF_CHILDREN)
)


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
