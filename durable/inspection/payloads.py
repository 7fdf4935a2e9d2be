"""Payloads as people may see them: decoded, redacted, and as text that nothing takes for markup.

Owns the redaction hook. `DURABLE["REDACT"]` names a function `redact(workflow, field, value)` that returns what may be
shown instead of `value`; `field` is "input", "output", "arguments:<location>", "output:<location>", "state:<location>",
"message:<queue>", "response:<queue>", "error" or "traceback". The hook is given plain data (`durable.inspection.plain`);
a value that has no plain form is hidden unless the hook replaces it. Where the hook fails, nothing is shown.
Whether somebody may see payloads at all is for the surfaces to ask.
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

from durable import runtime
from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.inspection.humanize import printable
from durable.inspection.plain import DEEPEST, plain, without_originals

__all__ = ["HIDDEN", "jsonable", "payload", "pretty", "redacted", "shown_error", "shown_traceback"]

logger = logging.getLogger("durable.inspection")

HIDDEN: Final = "(hidden: the redaction hook failed)"


def redacted(workflow: str, field: str, value: Any) -> Any:
    """`value` as the project's hook lets it be seen, in plain data; itself without a hook."""
    if not conf.REDACT:
        return value
    try:
        given = plain(value)
        return without_originals(_hook(conf.REDACT)(workflow, field, given), plain(value))
    except Exception:  # a hook of the project's may raise anything
        logger.exception("the redaction hook %s failed for %s of %s", conf.REDACT, field, workflow)
        return HIDDEN


@cache
def _hook(path: str) -> Callable[[str, str, Any], Any]:
    hook: Callable[[str, str, Any], Any] = import_string(path)
    return hook


def payload(workflow: str, field: str, text: str | None) -> Any:
    """Codec text decoded and redacted, as data that JSON can write; None for None."""
    if text is None:
        return None
    try:
        value = runtime.current().codec.decode(text)
    except Exception as error:  # noqa: BLE001  # a class that is gone, a key that was lost, a codec of the project's
        # a codec of the project's may say in its error what it could not read
        return {"unreadable": str(redacted(workflow, "error", f"{type(error).__name__}: {error}"))}
    return jsonable(redacted(workflow, field, value))


def pretty(value: Any, most: int = 20_000) -> str:
    """Data as indented JSON text, characters beyond ASCII as themselves; after `most` characters it says that it is cut."""
    text = printable(json.dumps(value, indent=2, ensure_ascii=False))
    return (
        text if len(text) <= most else f"{text[:most]}\n… and {len(text) - most:,} characters more; the export has all"
    )


def shown_error(workflow: str, error: ErrorInfo | None) -> str:
    """The error's type and its message, redacted; "" for none."""
    if error is None:
        return ""
    message = redacted(workflow, "error", error.message)
    return f"{error.type}: {message}" if message else error.type


def shown_traceback(workflow: str, error: ErrorInfo | None) -> str:
    """The traceback, redacted; only for those who may see payloads."""
    return "" if error is None or not error.traceback else str(redacted(workflow, "traceback", error.traceback))


def jsonable(value: Any, depth: int = 0) -> Any:
    """`value` in what JSON has: what it lacks becomes text, as `repr` shows it."""
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
