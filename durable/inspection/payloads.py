"""Payloads as operators may see them: decoded, redacted, and as text that no page interprets as markup.

Owns the redaction hook. `DURABLE["REDACT"]` names a function `redact(workflow, field, value)` that returns what may be
shown instead of `value`; `field` is "input", "output", "arguments:<location>", "output:<location>", "state:<location>",
"saved:<location>", "message:<queue>", "response:<queue>", "error", "traceback" or "log". The hook gets plain data
(`durable.inspection.plain_data`); a value without a plain form is hidden unless the hook replaces it. If the hook
fails, nothing is shown. The surfaces check whether a user may see payloads at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from functools import cache
from typing import Any, Final
from uuid import UUID

from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from durable import runtime
from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.places import Place
from durable.inspection.humanize import printable, thousands
from durable.inspection.plain_data import DEEPEST, to_plain, without_originals

logger = logging.getLogger("durable.inspection")

HIDDEN: Final = "(hidden: the redaction hook failed)"


def redacted(workflow: str, field: str, value: Any) -> Any:
    """Return `value` as plain data after the project's hook; without a hook, `value` itself."""
    if not conf.REDACT:
        return value
    try:
        given = to_plain(value)
        return without_originals(_hook(conf.REDACT)(workflow, field, given), to_plain(value))
    except Exception:  # the project's hook may raise anything
        logger.exception("the redaction hook %s failed for %s of %s", conf.REDACT, field, workflow)
        return HIDDEN


@cache
def _hook(path: str) -> Callable[[str, str, Any], Any]:
    hook: Callable[[str, str, Any], Any] = import_string(path)
    return hook


def payload(workflow: str, field: str, text: str | None, place: Place) -> Any:
    """Decode and redact codec text recorded at `place`, and return JSON data; None for None."""
    if text is None:
        return None
    try:
        value = runtime.current().decode(text, place)
    except Exception as error:  # noqa: BLE001  # a deleted class, a lost key, a codec of the project
        # The project's codec may quote in its error the text that it could not read.
        return {"unreadable": str(redacted(workflow, "error", f"{type(error).__name__}: {error}"))}
    return jsonable(redacted(workflow, field, value))


def pretty(value: Any, most: int = 20_000) -> str:
    """Return data as indented JSON text, without escapes for characters beyond ASCII; cut after `most` characters."""
    text = printable(json.dumps(value, indent=2, ensure_ascii=False))
    if len(text) <= most:
        return text
    more = _("… and %(number)s characters more; the export has all") % {"number": thousands(len(text) - most)}
    return f"{text[:most]}\n{more}"


def redacted_error(workflow: str, error: ErrorInfo | None) -> str:
    """Return the error's type and its message, redacted; "" for None."""
    if error is None:
        return ""
    message = redacted(workflow, "error", error.message)
    return f"{error.type}: {message}" if message else error.type


def redacted_traceback(workflow: str, error: ErrorInfo | None) -> str:
    """Return the traceback, redacted; only for users with the permission to see payloads."""
    return "" if error is None or not error.traceback else str(redacted(workflow, "traceback", error.traceback))


def jsonable(value: Any, depth: int = 0) -> Any:
    """Convert `value` to JSON data: a type that JSON lacks becomes text, as `repr` shows it."""
    if value is None or isinstance(value, bool | str) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): jsonable(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [jsonable(each, depth + 1) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted((jsonable(each, depth + 1) for each in value), key=repr)
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  # a user's __repr__ may raise anything
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"
