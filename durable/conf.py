"""The settings of durable: `settings.DURABLE`, typed, with defaults.

Owns names, defaults and the parsing of durations. Refuses nothing: a check (`durable.checks.configuration`) reports a
wrong value or an unknown key, and this module ignores an unknown key. Must not import models, RQ or Redis.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.core.signals import setting_changed

from durable.core.duration import Duration, seconds
from durable.core.mistakes import MISTAKES
from durable.core.numbers import is_number

#: The classes of mistakes unless a project or a workflow names others; their subclasses count. Django raises its own
#: one if a coroutine uses the ORM.
DEFAULT_MISTAKES: Final[tuple[type[Exception], ...]] = (*MISTAKES, SynchronousOnlyOperation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Every setting with its default. Durations are in seconds; in `settings.DURABLE` they may be `timedelta`.

    - `CODEC`: the dotted path of the codec: a class or an object with `encode` and `decode`.
    - `ENCRYPTION_KEYS`: Fernet keys for the encrypting codec; the first encrypts, all decrypt.
    - `BIND_PAYLOADS`: whether the encrypting codec binds each value to its run and field, so that it is read nowhere
      else: "off"; "accept" binds, and reads what is bound to nothing too; "require" refuses that.
    - `MAX_PAYLOAD_BYTES`: the limit of one encoded value.
    - `SHORT_SLEEP`: a shorter sleep waits in memory instead of parking the run.
    - `LEASE`: how long a run stays with a worker that no longer answers; renewed at a third of it.
    - `SWEEP_INTERVAL`: how often each `durable_worker` looks for due runs without a notification.
    - `REDIS`: whether workers are notified of due runs through Redis. With False durable uses no Redis at all: workers
      listen to PostgreSQL, and poll SQLite.
    - `LISTEN`: whether workers listen to PostgreSQL without Redis. With False they poll it.
    - `EMBEDDED`: whether a web process starts a `durable_worker` (`durable.worker.embedded`), for a small site on one
      machine.
    - `NOTIFY_IN_TESTS`: whether a process that runs Django's tests notifies workers through Redis. A test without a
      `Harness` does not by default, because the developer's own workers would receive the notification; its runs are
      due all the same.
    - `POLL_INTERVAL`: how often each `durable_worker` queries the database for due runs where nothing notifies it: on
      SQLite, behind a pooler in transaction mode, and while Redis is away.
    - `MAX_BRANCH_THREADS`: threads of one pass for the branches of joins and races, nested ones included.
    - `MAX_CRASHES`: a run that crashes this many workers in a row without progress fails.
    - `HARD_TIMEOUT`: how long after its timeout, or after its heartbeat without a sign, a step that cannot be
      interrupted may continue; then its worker process ends, which counts as a crash of that attempt. 0: no limit.
    - `DIVERGENCE_GRACE`: how long a run whose history does not fit the code, or whose code has a mistake, is tried
      again before it stops.
    - `MISTAKES`: the classes of errors, or their dotted paths, that are mistakes in a workflow's code when the workflow
      raises them: the run stops, and nothing is undone. An empty list: no class is.
    - `GUARD`: what becomes of queries, and in development and tests of files, sockets, processes and changed inputs
      too, that workflow code makes between its operations: "off", "log" ("warn" is the same) or "raise", which stops
      the run. None: "raise" with DEBUG, in tests and with a `Harness`, otherwise "log".
    - `STEP_TIMEOUT`: the limit of one attempt of a step that sets none; text such as "10 minutes" too; None or 0 for no
      limit.
    - `ASK_TIMEOUT`: how long people have to answer a question that has no timeout of its own (`ctx.ask_person`); text
      such as "30 days" too.
    - `MAX_UNCOUNTED_RETRIES`: how many attempts of one step may end with `RetryLater(counts=False)`; later ones count.
    - `LIMITS`: limits by name, as `{"gpu": {"at_once": 4}, "openai": {"rate": "500/min", "burst": 50}}`: how many slots
      of each key may be held at once, how many units may begin in each period, and how many of them at once after a
      pause (1). The database's row decides once the limit was used.
    - `PRIORITIES`: names of priorities, as `{"high": "10 min", "low": "-1 hour"}`: for how much longer a run counts as
      waiting than it does; at most a day.
    - `TAGS`: how the values of tags are kept, by the tag's name: "hashed", as an HMAC of which runs can be found, or
      "clear", as every other tag, without a warning about names such as "email".
    - `CARRY`: what travels with runs, as `{"tenant": "shop.tenants.carry"}`: the dotted paths of carriers, by the names
      under which a run keeps what they save at its start (`durable.carriers`).
    - `BUILD`: the name of the project's code, such as a commit or an image's tag; without it the environment variable
      DURABLE_BUILD, otherwise none. Workers report it with themselves and with failures; at most 200 characters.
    - `DATABASE`: the alias of the database that holds durable's tables.
    - `READ_DATABASE`: the alias of a standby of that database, which lists, charts, causes, exports and metrics read
      (`durable.inspection.reading`); "" for none.
    - `PARTITIONS`: on PostgreSQL, in how many parts the first `migrate` makes the tables of runs and entries, by the
      hash of the run's id; 0 for whole tables. `manage.py durable partition` is for tables that have rows.
    - `MARK`: the path of a file outside of the database that keeps how far the database has come (`durable.marks`);
      "" for Redis.
    - `BASE_URL`: the address under which the project is reached from outside, such as "https://shop.example", for links
      (`ctx.link`); without it the domain of the sites framework. A path at its end stands for the script prefix.
    - `LINK_BODY_BYTES`: the largest answer that a link accepts.
    - `LINK_REFUSALS`: how many refused answers of one link, and how many unknown links of one address, are answered in
      full within a minute; more get the status 429. 0 for no limit.
    - `QUEUE`: the RQ queue of workflows that name none.
    - `CLAIM_BATCH`: how many due runs a worker claims at once, at most.
    - `PREPARED_STATEMENTS`: whether PostgreSQL sessions keep the most frequent statements of runs prepared. "auto": a
      process stops at the first one that a session has lost, as behind a pooler in transaction mode.
    - `OTHER_JOBS`: the RQ jobs that durable's workers run besides their own: dotted names of functions, or of modules
      and packages with a dot at the end ("shop.jobs."). The workers refuse all other jobs in Redis.
    - `RETENTION`: how long ended runs and the audit log are kept: None for forever, a duration, or a dict by state and
      workflow (`durable.retention.Policy.of`).
    - `EVENTS_KEPT`: for how long events are kept (`durable.publish`): so far back may a wait look with `within`.
    - `STATEMENT_TIMEOUT`: how long PostgreSQL may work on one statement of a list, a search or a page of the admin, of
      REST and of the command line; 0 for no limit. It does not apply to runs and verbs.
    - `METRICS_TOKEN`: the bearer token with which Prometheus may read `durable.metrics.urls`; "" for none.
    - `ALERTS`: what needs a person, and where alerts of it are sent (`durable.alerts.settings`); None: none.
    - `TRACE_URL`: the address of a run's traces, for a link on its page: a text with `{trace_id}`, the id to which all
      traces of the run link, or `{run_id}`; "" for no link.
    - `REDACT`: the dotted path of `redact(workflow, field, value)`, which returns what operators may see of a payload
      (`durable.inspection.payloads`); "" shows all of it to operators with the permission to see payloads.
    - `API_RUNS`: the dotted path of a function of a request and a queryset of runs, which returns those runs that the
      user may see over REST; without it, all of them.
    - `ADMIN_RUNS`: the dotted path of such a function for the admin: without it, a user with `durable.view_run` sees
      all runs there.
    - `API_MAX_WAITING`: how many requests of one process may wait at a time over REST (long polls), 0 for none. Without
      it 8 under ASGI, a quarter of the server's threads under WSGI, and none in a process with one thread.
    - `API_WORKFLOWS`: the names of the workflows that may be started over REST, or prefixes of names that end with a
      dot ("shop."); without it, all of them.
    """

    CODEC: str = "durable.codec.JsonCodec"
    ENCRYPTION_KEYS: Sequence[str] = ()
    BIND_PAYLOADS: str = "off"
    MAX_PAYLOAD_BYTES: int = 1024 * 1024
    SHORT_SLEEP: float = 0.1
    LEASE: float = 30.0
    SWEEP_INTERVAL: float = 5.0
    REDIS: bool = True
    LISTEN: bool = True
    EMBEDDED: bool = False
    NOTIFY_IN_TESTS: bool = False
    POLL_INTERVAL: float = 0.2
    MAX_BRANCH_THREADS: int = 8
    MAX_CRASHES: int = 5
    HARD_TIMEOUT: float = 60.0
    DIVERGENCE_GRACE: float = 600.0
    MISTAKES: Sequence[type[Exception] | str] = DEFAULT_MISTAKES
    GUARD: str | None = None
    STEP_TIMEOUT: float = 600.0
    ASK_TIMEOUT: float = 30 * 86_400.0
    MAX_UNCOUNTED_RETRIES: int = 100
    LIMITS: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    PRIORITIES: Mapping[str, Duration] = field(default_factory=dict)
    TAGS: Mapping[str, str] = field(default_factory=dict)
    CARRY: Mapping[str, str] = field(default_factory=dict)
    BUILD: str | None = None
    DATABASE: str = "default"
    READ_DATABASE: str = ""
    PARTITIONS: int = 0
    MARK: str = ""
    BASE_URL: str = ""
    LINK_BODY_BYTES: int = 512 * 1024
    LINK_REFUSALS: int = 60
    QUEUE: str = "default"
    CLAIM_BATCH: int = 10
    PREPARED_STATEMENTS: bool | Literal["auto"] = "auto"
    OTHER_JOBS: Sequence[str] = ()
    RETENTION: float | Mapping[str, Any] | None = None
    API_RUNS: str | None = None
    ADMIN_RUNS: str | None = None
    API_MAX_WAITING: int | None = None
    API_WORKFLOWS: Sequence[str] | None = None
    ALERTS: Mapping[str, Any] | None = None
    TRACE_URL: str = ""
    REDACT: str = ""
    EVENTS_KEPT: float = 86_400.0
    STATEMENT_TIMEOUT: float = 10.0
    METRICS_TOKEN: str = ""


#: The environment variable that names the build if `BUILD` is not given.
BUILD_VARIABLE: Final = "DURABLE_BUILD"
MAX_BUILD: Final = 200  # characters
MOST_PARTITIONS: Final = 64  # a statement that looks at all of them costs more with each


def may_be_partitions(number: int) -> bool:
    """Return True if the tables may have so many partitions; 0 are none."""
    return number == 0 or 2 <= number <= MOST_PARTITIONS


#: The settings that are durations, or may be one, and so may be given as `timedelta`.
DURATIONS = frozenset(
    {
        "SHORT_SLEEP",
        "LEASE",
        "HARD_TIMEOUT",
        "SWEEP_INTERVAL",
        "POLL_INTERVAL",
        "DIVERGENCE_GRACE",
        "STEP_TIMEOUT",
        "ASK_TIMEOUT",
        "RETENTION",
        "EVENTS_KEPT",
        "STATEMENT_TIMEOUT",
    }
)


if TYPE_CHECKING:
    _Attributes = Values  # the type checker gives conf the attributes of Values
else:
    _Attributes = object


class Conf(_Attributes):
    """The settings as attributes: `conf.LEASE`. Read at the first use, and again after a change of the settings.

    The values are kept in the object's own attributes, because some are read at every step.
    """

    def __init__(self) -> None:
        self._values: Values | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every key that `settings.DURABLE` may have."""
        return tuple(each.name for each in fields(Values))

    @property
    def given(self) -> Mapping[str, Any]:
        """The project's own mapping, unparsed; {} if it is not a mapping."""
        given = getattr(settings, "DURABLE", {})
        return given if isinstance(given, Mapping) else {}

    @property
    def values(self) -> Values:
        """All settings, parsed."""
        if self._values is None:
            known = set(self.names)
            given = {"BUILD": os.environ.get(BUILD_VARIABLE) or None, **self.given}
            self._values = Values(**{key: _read(key, value) for key, value in given.items() if key in known})
        return self._values

    @property
    def build(self) -> str:
        """The name of this process's code, as rows have it; "" for none."""
        return str(self.BUILD or "")[:MAX_BUILD]

    def forget(self) -> None:
        """Read the settings again at the next use."""
        self._values = None
        for name in self.names:
            vars(self).pop(name, None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            value = vars(self)[name] = getattr(self.values, name)
            return value


def _read(key: str, value: Any) -> Any:
    if key == "STEP_TIMEOUT" or (key == "ASK_TIMEOUT" and isinstance(value, str)):
        return _read_timeout(value)
    if key in DURATIONS and isinstance(value, timedelta):
        return value.total_seconds()
    if key in DURATIONS and is_number(value):
        return float(value)
    return value


def _read_timeout(value: Any) -> Any:
    try:
        return seconds(0 if value is None else value)
    except (TypeError, ValueError):  # the check reports it
        return value


conf = Conf()


def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting == "DURABLE":
        conf.forget()


setting_changed.connect(_on_setting_changed, dispatch_uid="durable.conf")
