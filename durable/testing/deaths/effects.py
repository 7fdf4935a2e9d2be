"""What leaves the process while a test is watched: requests, mails, rows, starts of runs, calls of mocks.

Each is noted where the project's code hands it over (a client's `send`, a mail backend, a database's cursor), so that
it counts whoever answers: the real service, `responses`, `respx`, `pytest-httpx`, `httpx.MockTransport`, `locmem`. The
libraries are looked for among the imported modules, and none is imported here. What each does is not changed.
"""

from __future__ import annotations

import contextvars
import decimal
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings

from durable.core.current import current_step, is_in_step
from durable.core.numbers import is_number
from durable.testing.deaths import trials
from durable.testing.muting import statements_through

_LOCMEM: Final = "django.core.mail.backends.locmem.EmailBackend"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"})
#: Methods that do once what they do twice, as HTTP says.
_HARMLESS: Final = frozenset({"PUT", "DELETE"})
_LENGTH: Final = 120  # characters of a label
_LOOKED_INTO: Final = 100_000  # bytes of a body that are searched for a key

_is_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("durable_noting", default=False)


@contextmanager
def noted() -> Iterator[None]:
    """Note the effects of the trial in force, within the block."""
    with ExitStack() as stack:
        stack.enter_context(statements_through(_statement))
        for module, owner, method, note in _CALLS:
            _follow(stack, getattr(sys.modules.get(module), owner, None), method, note)
        for backend in _mail_backends():
            _follow(stack, backend, "send_messages", _mails)
        _follow(stack, mock.CallableMixin, "__call__", _mock)
        yield


def _follow(stack: ExitStack, owner: Any, method: str, note: Callable[..., None]) -> None:
    """Call `note` with the arguments of each call of a class's method, before it."""
    original = vars(owner).get(method) if owner is not None else None
    if not callable(original):
        return

    @contextmanager
    def noting(args: Any, kwargs: Any) -> Iterator[None]:
        if trials.in_force() is None or _is_inside.get():
            yield
            return
        note(*args, **kwargs)
        token = _is_inside.set(note is not _mock)  # a client may be built on another one, whose request is the same
        try:
            yield
        finally:
            _is_inside.reset(token)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with noting(args, kwargs):
            return original(*args, **kwargs)

    @functools.wraps(original)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        with noting(args, kwargs):
            return await original(*args, **kwargs)

    followed = acall if inspect.iscoroutinefunction(original) else call

    def restore() -> None:
        if vars(owner).get(method) is followed:
            setattr(owner, method, original)

    setattr(owner, method, followed)
    stack.callback(restore)


# -- requests


def _httpx(_client: Any, request: Any, *_: Any, **__: Any) -> None:
    try:
        body = request.content
    except Exception:  # noqa: BLE001  # it is a stream, which can be read once
        body = b""
    _request(request.method, str(request.url), request.headers, body)


def _requests(_session: Any, request: Any, **_: Any) -> None:
    _request(request.method or "", request.url or "", request.headers, request.body)


def _urllib3(pool: Any, method: str, url: str, body: Any = None, headers: Any = None, **_: Any) -> None:
    _request(method, _address(pool.scheme, pool.host, pool.port, url), headers or {}, body)


def _http_client(connection: Any, method: str, url: str, body: Any = None, headers: Any = None, **_: Any) -> None:
    scheme = "https" if connection.default_port == 443 else "http"
    _request(method, _address(scheme, connection.host, connection.port, url), headers or {}, body)


_CALLS: Final[tuple[tuple[str, str, str, Callable[..., None]], ...]] = (
    ("httpx", "Client", "send", _httpx),
    ("httpx", "AsyncClient", "send", _httpx),
    ("requests", "Session", "send", _requests),
    ("urllib3.connectionpool", "HTTPConnectionPool", "urlopen", _urllib3),
    ("http.client", "HTTPConnection", "request", _http_client),
)


def _address(scheme: str, host: str, port: int | None, path: str) -> str:
    if "//" in path:
        return path
    return f"{scheme}://{host}{'' if port in (None, 80, 443) else f':{port}'}{path}"


def _request(method: str, url: str, headers: Mapping[str, Any], body: Any) -> None:
    method = method.upper()
    if method in _READS:
        return
    parts = urlsplit(url)
    trials.note(
        "http",
        f"{method} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:_LENGTH],
        key=_key_of_request(url, headers, body),
        is_harmless=method in _HARMLESS,
    )


_FIELD: Final = re.compile(
    r'(?:idempotency[_-]?key|idempotence[_-]?key|client[_-]?token|clientrequestid)"?\s*[:=]\s*"?([^"&,}\s]+)',
    re.IGNORECASE,
)
_HEADERS: Final = ("idempotency", "idempotence", "request-id", "client-token")


def _key_of_request(url: str, headers: Mapping[str, Any], body: Any) -> str | None:
    """Return the key by which the receiver tells two requests apart, None without one."""
    given = {_text(name): _text(value) for name, value in headers.items()}
    texts = [url, *given.values(), _text(body)]
    if (own := _own_key()) and any(own in each for each in texts):
        return own
    for name, value in given.items():
        if any(each in name.lower() for each in _HEADERS):
            return value
    found = _FIELD.search(texts[-1])
    return found[1] if found else None


def _own_key() -> str:
    """Return the idempotency key of the running step; "" outside of steps."""
    return current_step().idempotency_key if is_in_step() else ""


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value[:_LOOKED_INTO]).decode("utf-8", "replace")
    return value[:_LOOKED_INTO] if isinstance(value, str) else ""


# -- mails


def _mail_backends() -> list[type]:
    """Return the classes through which mails leave: Django's in tests, and the one in force."""
    found: list[type] = []
    for path in (_LOCMEM, getattr(settings, "EMAIL_BACKEND", _LOCMEM)):
        module, _, name = str(path).rpartition(".")
        backend = getattr(sys.modules.get(module), name, None)
        if isinstance(backend, type) and backend not in found:
            found.append(backend)
    return found


def _mails(_backend: Any, messages: Iterable[Any], *_: Any, **__: Any) -> None:
    for message in list(messages or ()):
        headers = {str(name).lower(): str(value) for name, value in getattr(message, "extra_headers", {}).items()}
        key = next((value for name, value in headers.items() if "idempoten" in name), None)
        subject = str(getattr(message, "subject", ""))
        recipients = ", ".join(map(str, message.recipients()))
        trials.note("mail", f'mail "{subject}" to {recipients}'[:_LENGTH], key=key)


# -- rows

_INSERT: Final = re.compile(r'\s*INSERT\s+(?:OR\s+\w+\s+)?INTO\s+[`"]?([\w.$]+)', re.IGNORECASE)
_UPDATE: Final = re.compile(
    r'\s*UPDATE\s+(?:ONLY\s+)?[`"]?([\w.$]+)[`"]?\s+SET\s+(.*?)(?:\sWHERE\s|$)', re.IGNORECASE | re.S
)
_UPSERT: Final = re.compile(r"\sON\s+CONFLICT\s.*\sDO\s+UPDATE\s", re.IGNORECASE | re.S)
#: An assignment that computes a column's value from its value before: `"stock" = ("item"."stock" - 1)`.
_RELATIVE: Final = re.compile(r'"?(\w+)"?\s*=\s*[^=]*?[."\s(]\1\b', re.IGNORECASE)
#: Tables of Django itself that get rows on the way.
_ASIDE: Final = frozenset({"django_content_type", "auth_permission", "django_migrations", "django_session"})


def _statement(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    result = execute(sql, params, many, context)
    if trials.in_force() is not None and is_in_step():
        _note_rows(str(sql), params, many, context)
    return result


def _note_rows(sql: str, params: Any, many: bool, context: dict[str, Any]) -> None:
    alias = context["connection"].alias
    if (inserted := _INSERT.match(sql)) is not None:
        if _is_projects(inserted[1]) and not _UPSERT.search(sql) and _has_changed(sql, context):
            trials.note("insert", f"a row inserted into {inserted[1]}", database=alias)
        return
    updated = _UPDATE.match(sql)
    if updated is None or many or not _is_projects(updated[1]) or not _has_changed(sql, context):
        return
    if relative := _RELATIVE.search(updated[2]):
        trials.note("update", f"{relative[1]} of {updated[1]} changed by an amount", database=alias)
        return
    numbers = [str(each) for each in _flat(params) if is_number(each) or isinstance(each, decimal.Decimal)]
    trials.note("update", f"{updated[1]} updated with other numbers", key=json.dumps([sql, numbers]), database=alias)


def _has_changed(sql: str, context: dict[str, Any]) -> bool:
    """Return False if no row was changed. With RETURNING drivers count the rows only while they are read."""
    return "RETURNING" in sql.upper() or context["cursor"].rowcount != 0


def _flat(params: Any) -> Iterable[Any]:
    return params.values() if isinstance(params, Mapping) else params or ()


@functools.cache
def _tables_of_durable() -> frozenset[str]:
    return frozenset(
        model._meta.db_table for model in apps.get_app_config("durable").get_models(include_auto_created=True)
    )


def _is_projects(table: str) -> bool:
    return table not in _ASIDE and table not in _tables_of_durable()


# -- mocks


def _mock(stand_in: Any, *args: Any, **kwargs: Any) -> None:
    """Note a call of a mock in a step, which stands in for something outside of it."""
    if not is_in_step() or trials.is_stand_in(stand_in):
        return
    name = stand_in._extract_mock_name()
    own, values = _own_key(), [*args, *kwargs.values()]
    key = next((own for each in values if own in _texts_of(each)), None)
    if key is None:
        key = next((str(value) for each, value in kwargs.items() if "idempoten" in each.lower()), None)
    trials.note("mock", f"a call of the mock {name}"[:_LENGTH], key=key, is_doubtful=not _acts(name))


def _texts_of(value: Any) -> str:
    """Return the texts of an argument in one, as far as it is made of plain values."""
    if isinstance(value, Mapping):
        return " ".join(_texts_of(each) for each in value.values())
    if isinstance(value, list | tuple):
        return " ".join(map(_texts_of, value))
    return _text(value)


def _acts(name: str) -> bool:
    """Return True if the name of a mock suggests that the real function charges, sends or posts."""
    from durable.lint.known import acts, is_write

    last = name.rpartition(".")[2]
    return acts(f"mock.{last}") or is_write(last) or is_write(name)
