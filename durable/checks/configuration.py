"""Django system checks of durable's configuration: every finding has an id and a hint.

Owns the findings of `manage.py check` about settings, queues, the codec, the database alias and the workflows' names.
Opens no connection. An `E` cannot work; a `W` works, but not as expected.

======  ==============================================================
E001    `DURABLE` is not a dict
E002    a key of `DURABLE` that durable does not know
E003    a value of the wrong type or out of range
E004    the codec cannot be imported or created
E005    the codec lacks `encode` or `decode`, or does not decode what it encoded
E006    no database has the alias `DURABLE["DATABASE"]`, or `DURABLE["READ_DATABASE"]`
E007    `RQ_QUEUES` lacks a queue that runs would go to
E008    two functions have the same workflow name
E009    `RETENTION` has an entry that is not a time, state or workflow
E010    the redaction hook cannot be imported or called
E011    an isolation level on PostgreSQL other than READ COMMITTED, in OPTIONS or (`durable.checks.database`) as the
        server gives it
E012    a workflow's list of mistakes has an entry that is not an exception class
E013    `BIND_PAYLOADS` without a codec that binds
E014    `ALERTS` has an entry that is none (`durable.alerts`)
E015    a limit of a workflow that is not defined (`durable.checks.code`)
E016    two functions have two names of one workflow that a migration renames (`durable.checks.code`)
E017    a query cache stands before durable's tables: django-cachalot, by its settings, or any other, which
        `durable.checks.database` finds by reading twice
E018    `USE_TZ` is off
E019    a database that is neither PostgreSQL nor SQLite
E020    `OPTIONS` of the tasks backend has an unknown key (`durable.tasks.backend`)
E021    the tasks backend names a queue that RQ lacks (likewise)
E022    a PostgreSQL that is too old (`durable.checks.database`)
E023    another distribution is installed that has a package named durable
E024    the tables are in other partitions than `PARTITIONS` says (`durable.checks.database`)
E025    the `on_end` of a workflow cannot be imported or called (`durable.checks.code`)
E026    `BASE_URL` is not https, outside of DEBUG
E027    a carrier of `CARRY` cannot be imported or made, or has no `save` or no `restored`
E028    `AUTOCOMMIT` is off for the database
W081    a queue of ours, or beside one in the same Redis, without the JSON serializer
W082    `manage.py rqworker` would not read durable's jobs
W083    `ATOMIC_REQUESTS` on another database than durable's
W084    a database router sends durable's models elsewhere
W085    `ENCRYPTION_KEYS` without a codec that uses them
W086    `RETENTION` names an unknown workflow
W087    functions or triggers of the database differ from the migrations' (`durable.checks.database`)
W088    SQLite, where transactions begin without the write lock
W089    schedules of the code differ from their rows (`durable.checks.code`)
W090    a tag in clear whose name suggests personal data (`durable.checks.code`)
W095    a PostgreSQL on another host, and no options that notice when it vanishes (`durable.checks.database`; with
        `check --deploy` alone)
W096    no mark of the database is kept, or its file cannot be there (`durable.checks.database`; with `check --deploy`
        alone)
W097    the database is behind its mark (`durable.checks.database`); no error, because it would forbid `migrate`
W1xx    the code of a workflow breaks a rule (`durable.checks.code`); docs/rules.md lists them
======  ==============================================================
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.urls import reverse
from django.utils.module_loading import import_string

from durable.conf import DURATIONS, MAX_BUILD, MOST_PARTITIONS, conf, may_be_partitions
from durable.core import registry
from durable.core.duration import seconds
from durable.core.ids import check_limit
from durable.core.limits.ranks import head_start, is_priority_name
from durable.core.limits.rates import rate_of
from durable.core.limits.workflow_limits import MOST_AT_ONCE
from durable.core.numbers import is_number, is_whole
from durable.core.places import Place
from durable.core.tags import check_tag_name
from durable.guard import MODES
from durable.mistakes import error_classes
from durable.tag_hashes import KINDS

TAG = "durable"
JSON_SERIALIZERS = ("rq.serializers.JSONSerializer", "json")
WORKER = "durable.rq_workers.Worker"
VENDORS = ("postgresql", "sqlite")


@register(TAG)
def check_settings(**_: object) -> list[CheckMessage]:
    """Check that `settings.DURABLE` is a dict of known keys with valid values."""
    given = getattr(settings, "DURABLE", {})
    if not isinstance(given, Mapping):
        hint = 'Write DURABLE = {"LEASE": 30}, or leave it out for the defaults.'
        return [Error(f"DURABLE must be a dict, not {type(given).__name__}.", hint=hint, id="durable.E001")]
    return [message for key, value in given.items() for message in _check_setting(key, value)]


def _check_setting(key: object, value: object) -> Iterator[CheckMessage]:
    if key not in conf.names:
        hint = f"{_nearest(str(key).upper(), conf.names)}The keys are {', '.join(conf.names)}."
        yield Error(f"DURABLE has the unknown key {key!r}.", hint=hint, id="durable.E002")
        return
    is_right, wanted = _WANTED[str(key)]
    if not is_right(value):
        hint = f"Give it {wanted}, or leave it out."
        # A text may be a secret, whatever key holds it by mistake, and the output of checks goes into logs.
        is_harmless = isinstance(value, bool | int | float | timedelta) and key not in _SECRETS
        found = repr(value) if is_harmless else f"a value of the type {type(value).__name__}"
        yield Error(f'DURABLE["{key}"] must be {wanted}, not {found}.', hint=hint, id="durable.E003")


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the beginning of a hint for an unknown name."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f'Did you mean "{nearest[0]}"? ' if nearest else ""


def _is_duration(value: object) -> bool:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return is_number(seconds) and seconds >= 0


def _is_positive_duration(value: object) -> bool:
    return _is_duration(value) and value not in (0, timedelta(0))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are(value: object, is_one: Callable[[Any], object]) -> bool:
    """Return whether a value is a list of what `is_one` accepts."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(is_one, value))


def _are_keys(value: object) -> bool:
    return _are(value, lambda each: isinstance(each, str | bytes) and each)


def _are_error_classes(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    try:
        error_classes(tuple(value))
    except (ImproperlyConfigured, TypeError):  # TypeError: not hashable
        return False
    return True


def _is_trace_url(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.format(trace_id="0", run_id="run")
    except (KeyError, IndexError, ValueError, AttributeError):
        return False
    return not value or value.startswith(("https://", "http://"))


def _is_timeout(value: object) -> bool:
    try:
        seconds(0 if value is None else value)  # type: ignore[arg-type]  # checked by the call
    except (TypeError, ValueError):
        return False
    return True


def _is_ask_timeout(value: object) -> bool:
    try:
        return not isinstance(value, bool) and seconds(value) > 0  # type: ignore[arg-type]  # checked by the call
    except (TypeError, ValueError):
        return False


def _is_dotted_name(value: object) -> bool:
    return isinstance(value, str) and value.removesuffix(".").replace(".", "_").isidentifier()


def _is_function_or_none(value: object) -> bool:
    if value is None:
        return True
    try:
        return isinstance(value, str) and callable(import_string(value))
    except ImportError:
        return False


def _is_base_url(value: object) -> bool:
    if value == "":
        return True
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    is_whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_whole and not (parts.query or parts.fragment or parts.username or parts.password)


_BINDINGS = ("off", "accept", "require")
_SECRETS = frozenset({"ENCRYPTION_KEYS", "METRICS_TOKEN"})

_Wanted = tuple[Callable[[object], bool], str]
_COUNT: _Wanted = (lambda value: is_whole(value, 1), "a whole number from 1 on")
_FROM_ZERO: _Wanted = (lambda value: is_whole(value, 0), "a whole number from 0 on")
_FLAG: _Wanted = (lambda value: isinstance(value, bool), "True or False")
_RULE: _Wanted = (_is_function_or_none, "the dotted path of a function of a request and a queryset, or None")
_TEXT: _Wanted = (_is_text, "a text that is not empty")
_DURATION: _Wanted = (_is_duration, "seconds from 0 on or a timedelta")
_POSITIVE: _Wanted = (_is_positive_duration, "seconds above 0 or a timedelta")


def _by_name(is_one: Callable[[Any, Any], object]) -> Callable[[object], bool]:
    """Return whether a value is a dict of which `is_one` accepts each name with what is given for it."""

    def are(value: object) -> bool:
        try:
            return isinstance(value, Mapping) and all(is_one(name, given) for name, given in value.items())
        except (TypeError, ValueError):
            return False

    return are


def _is_limit(name: Any, given: Any) -> bool:
    check_limit(name)
    if not isinstance(given, Mapping) or not given or set(given) - {"at_once", "rate", "burst"}:
        return False
    has_rate = rate_of(given.get("rate"), given.get("burst")) is not None
    return has_rate if "at_once" not in given else is_whole(given["at_once"], 0, MOST_AT_ONCE)


def _is_priority(name: Any, given: Any) -> bool:
    head_start(given, {})
    return is_priority_name(name)


_are_carriers = _by_name(lambda name, path: _is_text(name) and _is_text(path))


_WANTED: Mapping[str, _Wanted] = {
    "CODEC": (_is_text, "the dotted path of a codec"),
    "ENCRYPTION_KEYS": (_are_keys, "a list of Fernet keys"),
    "BIND_PAYLOADS": (lambda value: value in _BINDINGS, '"off", "accept" or "require"'),
    "MAX_PAYLOAD_BYTES": _COUNT,
    "SHORT_SLEEP": _DURATION,
    "LEASE": _POSITIVE,
    "SWEEP_INTERVAL": _POSITIVE,
    "REDIS": _FLAG,
    "EMBEDDED": _FLAG,
    "LISTEN": _FLAG,
    "NOTIFY_IN_TESTS": _FLAG,
    "POLL_INTERVAL": _POSITIVE,
    "MAX_BRANCH_THREADS": _COUNT,
    "MAX_CRASHES": _COUNT,
    "HARD_TIMEOUT": _DURATION,
    "DIVERGENCE_GRACE": _DURATION,
    "MISTAKES": (_are_error_classes, "a list of classes of exceptions, or of their dotted paths"),
    "GUARD": (
        lambda value: value is None or (isinstance(value, str) and value in MODES),
        '"off", "log", "raise", or None',
    ),
    "STEP_TIMEOUT": (_is_timeout, 'seconds from 0 on, a timedelta, text such as "10 minutes", or None for no limit'),
    "ASK_TIMEOUT": (_is_ask_timeout, 'seconds above 0, a timedelta, or text such as "30 days"'),
    "MAX_UNCOUNTED_RETRIES": _FROM_ZERO,
    "LIMITS": (
        _by_name(_is_limit),
        'a dict of limits by name, such as {"gpu": {"at_once": 4}, "openai": {"rate": "500/min", "burst": 50}}',
    ),
    "PRIORITIES": (_by_name(_is_priority), 'a dict of lengths of at most a day by name, such as {"high": "10 min"}'),
    "TAGS": (
        _by_name(lambda name, kind: check_tag_name(name) and kind in KINDS),
        'a dict of "hashed" or "clear" by names of tags, such as {"email": "hashed"}',
    ),
    "CARRY": (_are_carriers, 'a dict of dotted paths by name, such as {"tenant": "shop.tenants.carry"}'),
    "BUILD": (
        lambda value: value is None or (isinstance(value, str) and 0 < len(value) <= MAX_BUILD),
        "a text of 1 to 200 characters, or None",
    ),
    "DATABASE": _TEXT,
    "READ_DATABASE": (lambda value: isinstance(value, str), 'an alias in DATABASES, or ""'),
    "PARTITIONS": (
        lambda value: is_whole(value) and may_be_partitions(value),
        f"0, or a whole number from 2 to {MOST_PARTITIONS}",
    ),
    "MARK": (lambda value: isinstance(value, str), 'the path of a file, or ""'),
    "BASE_URL": (_is_base_url, 'an address such as "https://shop.example", or ""'),
    "LINK_BODY_BYTES": _COUNT,
    "LINK_REFUSALS": _FROM_ZERO,
    "QUEUE": _TEXT,
    "CLAIM_BATCH": _COUNT,
    "PREPARED_STATEMENTS": (lambda value: isinstance(value, bool) or value == "auto", '"auto", True or False'),
    "OTHER_JOBS": (lambda value: _are(value, _is_dotted_name), 'a list of dotted names, such as ["shop.jobs."]'),
    "RETENTION": (
        lambda value: value is None or isinstance(value, Mapping) or _is_positive_duration(value),
        "seconds above 0, a timedelta, None, or a dict of them by state and workflow",
    ),
    "API_MAX_WAITING": (
        lambda value: value is None or is_whole(value, 0),
        "a whole number from 0 on, or None",
    ),
    "API_WORKFLOWS": (lambda value: value is None or _are(value, _is_text), "a list of names, or None"),
    "API_RUNS": _RULE,
    "ADMIN_RUNS": _RULE,
    "EVENTS_KEPT": _POSITIVE,
    "STATEMENT_TIMEOUT": _DURATION,
    "METRICS_TOKEN": (lambda value: isinstance(value, str), 'a text, or ""'),
    "ALERTS": (lambda value: value is None or isinstance(value, Mapping), "a dict with targets, or None"),
    "TRACE_URL": (_is_trace_url, 'a text such as "https://traces.example.org/trace/{trace_id}", or ""'),
    "REDACT": (lambda value: isinstance(value, str), 'the dotted path of a function, or ""'),
}
assert set(conf.names) == set(_WANTED) >= DURATIONS


@register(TAG)
def check_carriers(**_: object) -> list[CheckMessage]:
    """Check that each carrier of `CARRY` can be imported or made, and saves and restores."""
    if not conf.CARRY or not _are_carriers(conf.CARRY):
        return []  # nothing to check, or E003 reports it
    from durable import carriers  # few projects need it

    found: list[CheckMessage] = []
    hint = (
        "A carrier is an object, a class or a function that returns an object, with save(), which returns JSON or None, and "
        "restored(value), which returns a context manager."
    )
    for name, path in conf.CARRY.items():
        try:
            carriers.carrier(path)
        except Exception as error:  # noqa: BLE001  # whatever a class or function of the project raises
            problem = f'the carrier "{name}" of DURABLE["CARRY"] cannot be used: {type(error).__name__}: {error}.'
            found.append(Error(f"{problem[0].upper()}{problem[1:]}", hint=hint, id="durable.E027"))
    return found


@register(TAG)
def check_codec(**_: object) -> list[CheckMessage]:
    """Check that the codec can be created, and decodes what it encoded."""
    if not _is_text(conf.CODEC):
        return []  # E003 reports it
    try:
        codec = import_string(conf.CODEC)
        codec = codec() if inspect.isclass(codec) else codec
    except Exception as error:  # noqa: BLE001 - the module and constructor of a codec may raise anything
        hint = "Give the dotted path of a class or an object that can be imported, and what it needs to be made."
        message = f'DURABLE["CODEC"], {conf.CODEC}, cannot be used: {type(error).__name__}: {error}'
        return [Error(message, hint=hint, id="durable.E004")]
    missing = [name for name in ("encode", "decode") if not callable(getattr(codec, name, None))]
    if missing:
        hint = "A codec has encode(value) -> str and decode(text) -> value; see durable.codec.Codec."
        message = f'DURABLE["CODEC"], {conf.CODEC}, has no {" and no ".join(missing)}.'
        return [Error(message, hint=hint, id="durable.E005")]
    return [*_check_round_trip(codec), *_check_keys_used(codec), *_check_binds(codec)]


def _check_round_trip(codec: Any) -> Iterator[CheckMessage]:
    sample = {"text": "a", "numbers": [1, 2.5], "nothing": None}
    hint = "encode(value) must return a str from which decode makes an equal value."
    try:
        options = {"place": Place("check", "input")} if getattr(codec, "binds", False) else {}
        text = codec.encode(sample, **options)
        is_same = isinstance(text, str) and codec.decode(text, **options) == sample
        problem = None if is_same else f"{sample!r} came back changed"
    except Exception as error:  # noqa: BLE001 - missing keys raise something of the codec's own
        problem = f"{type(error).__name__}: {error}"
        hint = 'Fix the cause, or leave DURABLE["CODEC"] out for JSON text.'
    if problem is not None:
        yield Error(f'DURABLE["CODEC"], {conf.CODEC}, does not work: {problem}', hint=hint, id="durable.E005")


def _check_keys_used(codec: Any) -> Iterator[CheckMessage]:
    from durable.codec import JsonCodec

    if conf.ENCRYPTION_KEYS and type(codec) is JsonCodec:
        hint = 'Set DURABLE["CODEC"] to "durable.crypto.FernetCodec", or take the keys out.'
        message = 'DURABLE["ENCRYPTION_KEYS"] is set, but the codec does not encrypt.'
        yield Warning(message, hint=hint, id="durable.W085")


def _check_binds(codec: Any) -> Iterator[CheckMessage]:
    if conf.BIND_PAYLOADS not in _BINDINGS[1:]:
        return  # nothing is asked for, or E003 has said so
    if not getattr(codec, "binds", False):
        hint = 'Set DURABLE["CODEC"] to "durable.crypto.FernetCodec", or BIND_PAYLOADS to "off".'
        message = (
            f'DURABLE["BIND_PAYLOADS"] is "{conf.BIND_PAYLOADS}", but the codec does not bind values to their runs.'
        )
        yield Error(message, hint=hint, id="durable.E013")


@register(TAG)
def check_redaction(**_: object) -> list[CheckMessage]:
    """Check that the redaction hook can be imported: until then, operators see no payloads."""
    if not _is_text(conf.REDACT) or not (problem := _problem_of(conf.REDACT)):
        return []
    hint = "Give the dotted path of a function redact(workflow, field, value) that returns what may be shown."
    return [Error(f'DURABLE["REDACT"], {conf.REDACT}, cannot be used: {problem}.', hint=hint, id="durable.E010")]


def _problem_of(path: str) -> str:
    """Return why no function can be imported from a dotted path; "" if one can."""
    try:
        return "" if callable(import_string(path)) else "it is not a function"
    except Exception as error:  # noqa: BLE001 - the function's module may raise anything
        return f"{type(error).__name__}: {error}"


@register(TAG)
def check_links(**_: object) -> list[CheckMessage]:
    """Check that nobody on the way can read the address of a link."""
    if not _is_base_url(conf.BASE_URL):
        return []  # E003 reports it
    base = urlsplit(conf.BASE_URL)
    if conf.BASE_URL and not settings.DEBUG and base.scheme != "https" and not _is_here(base.hostname or ""):
        hint = "Serve the project by https, and name it so: who reads the address of a link can answer it."
        return [Error('DURABLE["BASE_URL"] is not https.', hint=hint, id="durable.E026")]
    return []


@register(Tags.urls)  # not of a worker's start: it loads all URLs of the project
def check_link_addresses(**_: object) -> list[CheckMessage]:
    """Check that the links of workflows have an address outside."""
    if not _is_base_url(conf.BASE_URL):
        return []  # E003 reports it
    using = [each.name for each in registry.all() if _mentions_link(each.function)]
    if not using:
        return []
    from durable import link_tokens

    has_site = apps.is_installed("django.contrib.sites") and getattr(settings, "SITE_ID", None)
    missing = [] if conf.BASE_URL or has_site else [link_tokens.NO_HOST]
    missing += [] if _is_included(link_tokens.URL_NAME) else [link_tokens.NO_URLS]
    names = f"{', '.join(using[:3])}{' and others' if len(using) > 3 else ''}"
    return [
        Warning(f"{names}: ctx.link() would stop the run.", hint=f"{each[0].upper()}{each[1:]}.", id="durable.W098")
        for each in missing
    ]


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, as in a project of development, whose tests run without DEBUG."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rpartition(".")[2] in ("localhost", "testserver")


def _mentions_link(function: Any) -> bool:
    """Return whether the code of a function, or of one inside it, names `link`."""
    left = [getattr(inspect.unwrap(function), "__code__", None)]
    while left:
        code = left.pop()
        if code is not None and "link" in code.co_names:
            return True
        left += [each for each in getattr(code, "co_consts", ()) if inspect.iscode(each)]
    return False


def _is_included(name: str) -> bool:
    try:
        reverse(name, args=["token"])
    except Exception:  # noqa: BLE001  # NoReverseMatch, or whatever the project's URLs raise: Django's checks say so
        return False
    return True


@register(TAG)
def check_alerts(**_: object) -> list[CheckMessage]:
    """Check that `ALERTS` can be read, and that functions in it can be imported."""
    from durable.alerts import AlertSettings, AlertSettingsError

    if not isinstance(conf.ALERTS, Mapping):
        return []  # no alerts, or E003 reports it
    try:
        targets = AlertSettings.of(conf.ALERTS).targets
    except AlertSettingsError as error:
        return [Error(f'DURABLE["ALERTS"]: {error}.', hint=error.hint, id="durable.E014")]
    hint = "Give the dotted path of a function(alert); alert is a durable.alerts.Alert."
    return [
        Error(f'DURABLE["ALERTS"]: {each.function} cannot be used: {problem}.', hint=hint, id="durable.E014")
        for each in targets
        if each.function and (problem := _problem_of(each.function))
    ]


@register(TAG)
def check_database(**_: object) -> list[CheckMessage]:
    """Check that the aliases of the database and of its replica exist."""
    return [*_check_alias("DATABASE", conf.DATABASE), *_check_alias("READ_DATABASE", conf.READ_DATABASE)]


def _check_alias(name: str, alias: str) -> Iterator[CheckMessage]:
    if not _is_text(alias) or alias in settings.DATABASES:
        return
    hint = f"{_nearest(alias, settings.DATABASES)}DATABASES has {', '.join(settings.DATABASES) or 'none'}."
    yield Error(f'DURABLE["{name}"], "{alias}", is not an alias in DATABASES.', hint=hint, id="durable.E006")


@register(TAG)
def check_vendor(**_: object) -> list[CheckMessage]:
    """Check that durable's database is PostgreSQL or SQLite, or a backend that is derived from theirs."""
    if (connection := _database()) is None or connection.vendor in VENDORS:
        return []
    message = (
        f'The database "{conf.DATABASE}" is {connection.display_name}: durable supports PostgreSQL and SQLite only.'
    )
    hint = (
        'Add a PostgreSQL database to DATABASES, name it in DURABLE["DATABASE"], and keep the others for your own models. '
        "A router sends the app durable there."
    )
    return [Error(message, hint=hint, id="durable.E019")]


def _database() -> Any:
    """Return the connection of durable's database; None for an unknown alias."""
    return connections[conf.DATABASE] if conf.DATABASE in list(connections) else None


def _database_of(vendor: str) -> Any:
    """Return the connection of durable's database if that is of this vendor; None for another, or an unknown alias."""
    found = _database()
    return found if found is not None and found.vendor == vendor else None


@register(TAG)
def check_namesake(**_: object) -> list[CheckMessage]:
    """Check that no other distribution writes its files into the package `durable`: the later one has replaced some."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("durable-rules")
    except PackageNotFoundError:
        return []
    message = f"durable-rules {found} is installed: its package is called durable, too."
    hint = "Use one of the two in an environment: pip uninstall durable-rules, then pip install --force-reinstall durable-django."
    return [Error(message, hint=hint, id="durable.E023")]


@register(TAG)
def check_time_zones(**_: object) -> list[CheckMessage]:
    """Check that times are aware: what a naive deadline means depends on the process that reads it."""
    if settings.USE_TZ:
        return []
    hint = (
        "Set USE_TZ = True, the default of Django. On PostgreSQL the times that your own models have stored stay the moments "
        "that they are. On SQLite they are then read as UTC, whatever TIME_ZONE they were written in; Django's documentation "
        "on time zones has a migration guide."
    )
    return [Error("durable needs aware times, and USE_TZ is False.", hint=hint, id="durable.E018")]


@register(TAG)
def check_cachalot(**_: object) -> list[CheckMessage]:
    """Check that django-cachalot leaves durable's tables alone. `check --database` finds any other cache by reading."""
    if not apps.is_installed("cachalot"):
        return []
    from cachalot.settings import cachalot_settings
    from cachalot.utils import is_cachable

    from durable.inspection.database import how_to_let_reads_through

    if not cachalot_settings.CACHALOT_ENABLED or conf.DATABASE not in cachalot_settings.CACHALOT_DATABASES:
        return []
    tables = [model._meta.db_table for model in apps.get_app_config("durable").get_models()]
    cached = [each for each in tables if is_cachable(each)]
    if not cached:
        return []
    message = f"django-cachalot caches durable's tables: {', '.join(cached)}."
    return [Error(message, hint=how_to_let_reads_through(), id="durable.E017")]


@register(TAG)
def check_isolation(**_: object) -> list[CheckMessage]:
    """Check for READ COMMITTED: a transaction that waited for a row's lock must decide by the row's newest version."""
    if (connection := _database_of("postgresql")) is None:
        return []
    from django.db.backends.postgresql.psycopg_any import IsolationLevel  # psycopg can be imported here

    level = connection.settings_dict["OPTIONS"].get("isolation_level")
    if level in (None, IsolationLevel.READ_COMMITTED):
        return []
    message = f'The database "{conf.DATABASE}" has another isolation level than READ COMMITTED.'
    hint = 'Leave "isolation_level" out of its OPTIONS, and ask for another level in the transactions that need it.'
    return [Error(message, hint=hint, id="durable.E011")]


@register(TAG)
def check_autocommit(**_: object) -> list[CheckMessage]:
    """Check that the end of a transaction is a commit: without autocommit Django leaves that to the project."""
    if (connection := _database()) is None or connection.settings_dict["AUTOCOMMIT"]:
        return []
    message = f'DATABASES["{conf.DATABASE}"] has AUTOCOMMIT off: nothing that durable writes would be committed.'
    hint = "Leave AUTOCOMMIT out there. Code that wants to commit by itself can use another alias of the same database."
    return [Error(message, hint=hint, id="durable.E028")]


@register(TAG)
def check_sqlite(**_: object) -> list[CheckMessage]:
    """Check that transactions on SQLite wait for their turn to write, also beside workers."""
    if (connection := _database_of("sqlite")) is None:
        return []
    mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or ""
    if str(mode).upper() in ("IMMEDIATE", "EXCLUSIVE"):
        return []
    message = f'Transactions on SQLite ("{conf.DATABASE}") that read and then write fail beside a worker that writes.'
    hint = (
        'Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20} there: they wait for their turn then, instead of '
        '"database is locked" at once.'
    )
    return [Warning(message, hint=hint, id="durable.W088")]


@register(TAG)
def check_queues(**_: object) -> list[CheckMessage]:
    """Check that RQ knows every queue that runs go to by default."""
    users = {conf.QUEUE: 'DURABLE["QUEUE"]'} if _is_text(conf.QUEUE) else {}
    for definition in registry.all():
        users.setdefault(definition.queue, f'the workflow "{definition.name}" ({registry.source_location(definition)})')
    known = _rq_queues()
    messages: list[CheckMessage] = []
    if not conf.REDIS:
        return messages  # without Redis, a queue is only a name that runs have and workers serve
    for queue, user in users.items():
        if queue in known:
            continue
        nearest = difflib.get_close_matches(queue, known, n=1)
        advice = f'did you mean "{nearest[0]}"? ' if nearest else ""
        hint = f'Add "{queue}" to RQ_QUEUES, or name another one: {advice}RQ_QUEUES has {", ".join(known) or "none"}.'
        if not known:
            hint += ' A project without Redis says DURABLE = {"REDIS": False}.'
        messages.append(Error(f'RQ_QUEUES lacks the queue "{queue}" of {user}.', hint=hint, id="durable.E007"))
    return messages


@register(TAG)
def check_serializers(**_: object) -> list[CheckMessage]:
    """Check that django-rq reads our queues' jobs as they are written, and that their workers read no pickles."""
    ours = _our_queues()
    hint = (
        'Add "SERIALIZER": "rq.serializers.JSONSerializer" to the queue: durable writes its jobs as JSON, and the admin '
        "pages of django-rq read them as the queue says. If other jobs of the queue have arguments that JSON lacks, "
        "give durable a queue of its own."
    )
    beside = (
        "A worker of durable's that serves this queue too (durable_worker without arguments serves every queue) "
        'runs jobs of DURABLE["OTHER_JOBS"] only, and reads pickles for them: a program that can write to that Redis runs code there '
        'then. Add "SERIALIZER": "rq.serializers.JSONSerializer" to the queue. Or have it served by workers of another class '
        "alone, name the queues to durable's workers, and silence this check."
    )
    return [
        Warning(
            f'RQ_QUEUES["{queue}"] has no JSON serializer.', hint=hint if queue in ours else beside, id="durable.W081"
        )
        for queue in [*ours, *_queues_beside(ours)]
        if _name_of(_rq_queues()[queue].get("SERIALIZER")) not in JSON_SERIALIZERS
    ]


def _queues_beside(ours: Sequence[str]) -> list[str]:
    """Return the other queues that a worker of ours may serve: those in the same Redis."""
    places = [_place_of(_rq_queues()[queue]) for queue in ours]
    return [queue for queue, config in _rq_queues().items() if queue not in ours and _place_of(config) in places]


def _place_of(config: Any) -> Mapping[str, Any]:
    names = ("URL", "HOST", "PORT", "DB", "SENTINELS", "MASTER_NAME", "UNIX_SOCKET_PATH", "USE_REDIS_CACHE")
    return {name: config.get(name) for name in names if config.get(name) is not None}


@register(TAG)
def check_rqworker(**_: object) -> list[CheckMessage]:
    """Check that `manage.py rqworker` can read our jobs: by itself it assumes pickle, whatever RQ_QUEUES says."""
    given = (getattr(settings, "RQ", None) or {}).get("WORKER_CLASS")
    if not _our_queues() or _reads_json(given):
        return []
    hint = (
        f'Set RQ = {{"WORKER_CLASS": "{WORKER}"}}, which also hands runs over at once on SIGTERM, and refuses jobs that are not ours. Or start it with '
        "--serializer rq.serializers.JSONSerializer, or run `manage.py durable_worker` only, and silence this check."
    )
    return [Warning("`manage.py rqworker` would not read durable's jobs.", hint=hint, id="durable.W082")]


def _reads_json(worker_class: Any) -> bool:
    from durable.worker.rq import DurableWorkerMixin

    if isinstance(worker_class, str):
        try:
            worker_class = import_string(worker_class)
        except ImportError:
            return False
    return inspect.isclass(worker_class) and issubclass(worker_class, DurableWorkerMixin)


@register(TAG)
def check_workflows(**_: object) -> list[CheckMessage]:
    """Check that no two functions have one workflow name."""
    hint = "Give each a name of its own: @workflow(name=...). Runs that exist keep the name they were started with."
    return [
        Error(
            f'The workflow name "{clash.name}" is taken by {" and by ".join(map(registry.source_location, clash.definitions))}.',
            hint=hint,
            id="durable.E008",
        )
        for clash in registry.clashes()
    ]


@register(TAG)
def check_mistakes(**_: object) -> list[CheckMessage]:
    """Check that the error classes which workflows list as mistakes can be imported."""
    found: list[CheckMessage] = []
    for definition in registry.all():
        try:
            error_classes(definition.mistakes or ())
        except ImproperlyConfigured as error:
            hint = "Give classes of exceptions, or their dotted paths: @workflow(mistakes=(KeyError,))."
            found.append(Error(f"{registry.source_location(definition)}: {error}.", hint=hint, id="durable.E012"))
    return found


_MOST_NAMED: Final = 5  # unknown workflows, each in a message of its own; one more has its own too


@register(TAG)
def check_retention(**_: object) -> list[CheckMessage]:
    """Check that `RETENTION` has valid times, states and workflows."""
    from durable.retention import Policy, RetentionError

    if not isinstance(conf.RETENTION, Mapping):
        return []  # a duration; E003 reports it if it is not one
    try:
        policy = Policy.of(conf.RETENTION)
    except RetentionError as error:
        return [Error(f'DURABLE["RETENTION"]: {error}.', hint=error.hint, id="durable.E009")]
    known = [each.name for each in registry.all()]
    unknown = [name for name in policy.workflows if name not in known]
    named = unknown if len(unknown) == _MOST_NAMED + 1 else unknown[:_MOST_NAMED]
    messages: list[CheckMessage] = []
    for name in named:
        hint = f"{_nearest(name, known)}If runs of it are left over, keep the line and silence this check."
        messages.append(Warning(f'RETENTION names no workflow: "{name}".', hint=hint, id="durable.W086"))
    if further := len(unknown) - len(named):
        hint = "If runs of them are left over, keep the lines and silence this check."
        messages.append(Warning(f"RETENTION names {further} more unknown workflows.", hint=hint, id="durable.W086"))
    return messages


@register(TAG)
def check_atomic_requests(**_: object) -> list[CheckMessage]:
    """Check that only durable's database has ATOMIC_REQUESTS: only its transactions include a start."""
    others = [
        alias
        for alias, database in settings.DATABASES.items()
        if alias != conf.DATABASE and database.get("ATOMIC_REQUESTS")
    ]
    if not others or not _is_text(conf.DATABASE) or conf.DATABASE not in settings.DATABASES:
        return []
    hint = (
        "A view's start() or send() is committed at once, even if the request's transaction is rolled back later. Keep "
        'durable\'s tables in the database of the transaction (DURABLE["DATABASE"]), or start with '
        "transaction.on_commit(..., using=...)."
    )
    aliases = ", ".join(f'"{each}"' for each in others)
    message = f'ATOMIC_REQUESTS is on for {aliases}, and durable\'s tables are in "{conf.DATABASE}".'
    return [Warning(message, hint=hint, id="durable.W083")]


@register(TAG)
def check_router(**_: object) -> list[CheckMessage]:
    """Check that Django's ORM looks for durable's models in durable's database."""
    if not _is_text(conf.DATABASE) or conf.DATABASE not in settings.DATABASES:
        return []
    astray = [
        model.__name__
        for model in apps.get_app_config("durable").get_models()
        if {router.db_for_read(model), router.db_for_write(model)} != {conf.DATABASE}
        or not router.allow_migrate_model(conf.DATABASE, model)
    ]
    if not astray:
        return []
    hint = (
        f'Have a router in DATABASE_ROUTERS send the app "durable" to "{conf.DATABASE}", for reading, writing and '
        'migrating, or set DURABLE["DATABASE"] to where it sends them.'
    )
    message = f'Django routes {", ".join(astray)} to another database than DURABLE["DATABASE"], "{conf.DATABASE}".'
    return [Warning(message, hint=hint, id="durable.W084")]


def _rq_queues() -> Mapping[str, Any]:
    queues = getattr(settings, "RQ_QUEUES", None)
    return queues if isinstance(queues, Mapping) else {}


def _our_queues() -> list[str]:
    """Return the queues that runs go to by default and that RQ knows; none if durable uses no RQ."""
    if not conf.REDIS:
        return []
    ours = [*([conf.QUEUE] if _is_text(conf.QUEUE) else []), *(each.queue for each in registry.all())]
    return [queue for queue in dict.fromkeys(ours) if queue in _rq_queues()]


def _name_of(serializer: Any) -> str:
    if serializer is None or isinstance(serializer, str):
        return serializer or ""
    return f"{getattr(serializer, '__module__', '')}.{getattr(serializer, '__qualname__', '')}"
