"""A step's options.

`StepOptions` is what callers write, for type checkers; `StepPolicy` is the same, validated, with a value for each
option. Options are validated once, when they are written; `durable.core.retries` decides by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar

from durable.core.duration import Duration, seconds
from durable.core.errors import cut_tokens
from durable.core.limits.rates import RateWant, rate_wanted
from durable.core.limits.slot_records import SlotWant, wanted
from durable.core.names.recorded_names import resolve_name
from durable.core.numbers import check_whole, is_number
from durable.core.outcomes import WHEN_EXHAUSTED, Found, NotDone, Unknown, WhenExhausted
from durable.core.signatures import check_call

R = TypeVar("R")

#: The options that only a step with `once=True` has.
_OF_ONCE: Final = ("verify", "verify_retries", "not_done", "unknown_timeout")

MOST_SUMMARY: Final = 200  # characters

Backoff = Literal["exponential", "linear", "constant"]
_BACKOFFS = ("exponential", "linear", "constant")


@dataclass(frozen=True, slots=True)
class RollbackContext:
    """The first argument of a rollback handler. `args` are the step's arguments. The second argument is the step's
    output.
    """

    run_id: str
    location: str
    args: tuple[Any, ...]
    _eviction_reason: Callable[[], str] = field(repr=False)

    def is_evicted(self) -> bool:
        """Return True if the pass has to end, or an operator has requested a pause or cancel."""
        return bool(self._eviction_reason())

    def eviction_reason(self) -> str:
        """Return the reason, as `Context.eviction_reason` does; "" for none."""
        return self._eviction_reason()


class Unset(Enum):
    """Marks an option that was not given, where None has a meaning of its own."""

    UNSET = "the setting's"


class CommonStepOptions(TypedDict, total=False):
    """The options that do not depend on the type of the step's output."""

    max_retries: int | None
    retry_backoff_base: Duration
    retry_backoff_max: Duration
    backoff: Backoff
    retry_jitter: float
    retry_if: Callable[[Exception], bool] | None
    timeout: Duration | None
    retry_on_timeout: bool
    heartbeat: Duration | None
    ephemeral: bool
    atomic: bool
    once: bool
    verify_retries: int
    verify: Callable[..., Found[Any] | NotDone | Unknown] | None
    not_done: type[Exception] | tuple[type[Exception], ...]
    unknown_timeout: Duration | tuple[Duration, Literal["fail"]] | None
    when_exhausted: WhenExhausted
    limit: str | None
    rate: str | None
    units: int
    summary: str


class StepOptions(CommonStepOptions, Generic[R], total=False):
    """Options of a step, as keywords of `ctx.step`, `ctx.try_step` and `@step`.

    Durations are seconds, `timedelta`, or text such as "10 s".

    - `max_retries`: attempts after the first, None for no end of them. After the last one the step has failed for good.
    - `retry_backoff_base`, `retry_backoff_max`, `backoff`: the delay after the n-th attempt is base * 2**n
      ("exponential"), base * n ("linear") or base ("constant"), and no more than the maximum. The run is parked
      meanwhile.
    - `retry_jitter`: from 0 to 1: the delay is drawn from delay * (1 - jitter) to delay * (1 + jitter), and is no more
      than the maximum. By default 0, which means no jitter.
    - `retry_if`: a function of the exception; False fails the step at once, as CriticalError does.
    - `timeout`: how long one attempt may take; 0 or None for no limit, by default what the setting STEP_TIMEOUT says.
      It fails the step for good, unless `retry_on_timeout`.
    - `heartbeat`: for how long an attempt may give no sign (`current_step().save(...)`) before it fails with
      HeartbeatTimeoutError, which the step's policy retries; 0 or None for no limit, the default.
    - `ephemeral`: the result is committed with the next commit of the run; a crash before that repeats the step.
    - `atomic`: what the function writes to durable's database and the step's record are one commit.
    - `once`: a second call would do harm. Each attempt is committed before the function is called; if it then neither
      returns nor says that nothing has happened, its outcome is unknown and it is not tried again by itself.
    - `verify`: a function of the step's arguments that finds out about an unknown outcome: it returns `Found(value)`,
      `NotDone()` or `Unknown()`. Without it, and if it does not know, a person is asked (`handle.settle`).
    - `verify_retries`: how often `verify` is called again if it raises, by default 5, with the step's backoff.
    - `not_done`: classes of errors that say that nothing has happened, besides `NotDone`. The retries go on after them.
    - `unknown_timeout`: the step fails if nobody has settled an unknown outcome for so long: "2 days", or with what is
      done then `("2 days", "fail")`. "fail" alone: at once, nobody is asked. By default the step waits.
    - `when_exhausted`: "fail", or "hold": the step waits for a person when its attempts are used up, and the run stays
      open. By default what the workflow says.
    - `limit`: the function runs while the step holds a slot of this limit, "gpu", or "crm/acme" for the key "acme" of
      the limit "crm". While none is free the run is parked, in the limit's line.
    - `rate`: each attempt begins at its own moment in the rate of this limit, "openai", or "openai/acme" for a key. The
      run is parked until then.
    - `units`: how many units of the rate one attempt takes, by default 1.
    - `summary`: one line for people about this call, such as a customer's name. It is shown beside the step's name, and
      is not a part of what a replay compares. It is stored as plain text, without the tokens of links, and cut to 200
      characters.
    - `rollback`: `handler(rollback, output)`, which undoes the step when the run fails; a function at the top level of
      a module.
    """

    rollback: Callable[[RollbackContext, R], object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicy:
    """The policy of a step: the value of each of its `StepOptions`, validated, durations in seconds."""

    max_retries: int | None = 3
    retry_backoff_base: Duration = 0.1
    retry_backoff_max: Duration = 30.0
    backoff: Backoff = "exponential"
    retry_jitter: float = 0.0
    retry_if: Callable[[Exception], bool] | None = None
    timeout: Duration | Unset = Unset.UNSET
    retry_on_timeout: bool = False
    heartbeat: float = 0.0  # given as a Duration or None
    ephemeral: bool = False
    atomic: bool = False
    once: bool = False
    verify: Callable[..., Any] | None = None
    verify_retries: int = 5
    not_done: tuple[type[Exception], ...] = ()  # given as one class too
    unknown_timeout: Duration | tuple[Duration, Literal["fail"]] | None = None
    when_exhausted: WhenExhausted | None = None
    limit: SlotWant | None = None  # given as text
    rate: RateWant | None = None  # given as text
    units: int = 1  # from `rate`
    summary: str = ""
    rollback: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.max_retries is not None:
            check_whole("max_retries", self.max_retries, or_else=", or None for no end")
        for name in ("retry_backoff_base", "retry_backoff_max", "timeout", "heartbeat"):
            value = getattr(self, name)
            if value is Unset.UNSET:
                continue
            if type(value) is not float or not 0 <= value < math.inf:
                object.__setattr__(self, name, seconds(0 if value is None else value, name))
        if self.backoff not in _BACKOFFS:
            raise ValueError(f"backoff must be one of {', '.join(_BACKOFFS)}, not {self.backoff!r}")
        if self.limit is not None and not isinstance(self.limit, SlotWant):
            object.__setattr__(self, "limit", wanted(self.limit))
        if self.rate is not None and not isinstance(self.rate, RateWant):
            object.__setattr__(self, "rate", rate_wanted(self.rate, self.units))
        if self.rate is None and self.units != 1:
            raise ValueError('units= is of a rate: add rate=, such as rate="openai"')
        if self.heartbeat and self.atomic:
            raise ValueError(
                "an atomic step has no heartbeat: it saves nothing, because what a failed attempt has done is rolled back; "
                "leave out heartbeat=, and let timeout= limit it"
            )
        jitter = self.retry_jitter
        if not is_number(jitter) or not 0 <= jitter <= 1:
            raise ValueError(f"retry_jitter must be a number from 0 to 1, the part of the delay, not {jitter!r}")
        if self.retry_if is not None and not callable(self.retry_if):
            raise TypeError(f"retry_if must be a function of the exception, not {self.retry_if!r}")
        if self.when_exhausted is not None and self.when_exhausted not in WHEN_EXHAUSTED:
            raise ValueError(f'when_exhausted is "fail" or "hold", not {self.when_exhausted!r}')
        if self.rollback is not None:
            handler_name(self.rollback)
        self._check_once()

    def _check_once(self) -> None:
        """Check the options of a step whose second call would do harm."""
        default_of = {each.name: each.default for each in fields(self) if each.name in _OF_ONCE}
        if not self.once:
            if given := [name for name in _OF_ONCE if getattr(self, name) != default_of[name]]:
                raise ValueError(f"{given[0]}= is of a step with once=True: add it, or leave {given[0]}= out")
            return
        if self.atomic:
            raise ValueError(
                "an atomic step is done exactly once by itself: leave out once=True, or leave out atomic=True if the function "
                "does something outside of durable's database"
            )
        if self.ephemeral:
            raise ValueError("the result of a step with once=True is committed at once: leave out ephemeral=True")
        classes = self.not_done if isinstance(self.not_done, tuple) else (self.not_done,)
        for each in classes:
            if not (isinstance(each, type) and issubclass(each, Exception)):
                raise TypeError(f"not_done has classes of exceptions, not {each!r}")
        object.__setattr__(self, "not_done", classes)
        check_whole("verify_retries", self.verify_retries)
        if self.unknown_timeout is not None:
            object.__setattr__(self, "unknown_timeout", _until_it_fails(self.unknown_timeout))
        if self.verify is None:
            if self.verify_retries != default_of["verify_retries"]:
                raise ValueError("verify_retries= is of verify=: add a function that finds out, or leave it out")
        elif not callable(self.verify):
            raise TypeError(f"verify must be a function of the step's arguments, not {self.verify!r}")
        elif self.rollback is not None and importable_name(self.verify) is None:
            raise TypeError(
                f"verify of a step with a rollback handler must be a function at the top level of a module, {self.verify!r} "
                "is not: it is recorded by name, so that another process can ask before it compensates"
            )

    def timeout_or(self, default: float) -> float:
        """Return the timeout in seconds, 0 for none; `default` if the step has no timeout of its own."""
        return default if self.timeout is Unset.UNSET else float(self.timeout)  # type: ignore[arg-type]  # normalised in __post_init__


def _until_it_fails(given: Any) -> float:
    """Return for how many seconds a step whose outcome is unknown waits for a person. Raises TypeError, ValueError."""
    if given == "fail":
        return 0.0
    if isinstance(given, tuple):
        if len(given) != 2 or given[1] != "fail":
            raise ValueError(
                f'unknown_timeout is a length of time, "fail", or both as ("2 days", "fail"), not {given!r}'
            )
        given = given[0]
    return seconds(given, "unknown_timeout")


def _one_line(text: Any) -> str:
    """Return the summary of a step as one line of at most `MOST_SUMMARY` characters. Raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"summary is a line of text, not {text!r}: write str(...)")
    line = " ".join(cut_tokens(text)[: 4 * MOST_SUMMARY].split())
    return line if len(line) <= MOST_SUMMARY else f"{line[: MOST_SUMMARY - 3]}..."


DEFAULTS = StepPolicy()
_NAMES = frozenset(each.name for each in fields(StepPolicy))


def options_of(given: dict[str, Any]) -> StepPolicy:
    """Return the options given as keywords. Raises TypeError for an unknown one, and names the nearest."""
    if not given:
        return DEFAULTS
    if unknown := given.keys() - _NAMES:
        import difflib

        name = min(unknown)
        nearest = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f'; did you mean "{nearest[0]}"?' if nearest else f"; there are {', '.join(sorted(_NAMES))}"
        raise TypeError(f'a step has no option "{name}"{hint} (arguments of the function are passed by position)')
    if (text := given.get("summary")) is not None:  # it differs from call to call, so it is kept out of the cache
        others = {name: value for name, value in given.items() if name != "summary"}
        return replace(options_of(others), summary=_one_line(text))
    try:
        return _cached(tuple(given.items()))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return StepPolicy(**given)


@lru_cache(maxsize=1024)
def _cached(items: tuple[tuple[str, Any], ...]) -> StepPolicy:
    return StepPolicy(**dict(items))


@lru_cache(maxsize=1024)
def handler_name(handler: Callable[..., Any]) -> str:
    """Return the importable name, "module:qualname", under which a rollback handler is recorded.

    Raises TypeError for a handler that no other process could import (a lambda, a closure, a bound method), or that
    cannot be called as `handler(rollback, output)`.
    """
    name = importable_name(handler)
    if name is None:
        raise TypeError(
            f"a rollback handler must be a function at the top level of a module, {handler!r} is not: it is recorded "
            "by name, so that another process can compensate. Name it with def, and let the step return what it needs"
        )
    check_call("compensation, as handler(rollback, output),", handler, (None, None))
    return name


@lru_cache(maxsize=1024)
def importable_name(function: Callable[..., Any]) -> str | None:
    """Return the name, "module:qualname", by which another process can import the function; None if none could."""
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", "")
    name = f"{module}:{qualname}"
    try:
        return name if module and "<" not in qualname and resolve_name(name) is function else None
    except (ImportError, AttributeError):
        return None
