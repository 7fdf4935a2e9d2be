"""Pages by key: the end of a page as opaque text, and the shape of a page. No totals, no offsets."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final

from rest_framework import serializers

from durable.api.serializers.fields import Query, Text
from durable.inspection.pagination import InvalidCursorError

PAGE: Final = 50
_MOST = 200
_MAX_TEXT = 1_200
_LARGEST = 2**63 - 1


class PageQuery(Query):
    """The size of a page, and where it begins."""

    cursor = Text(required=False, max_length=_MAX_TEXT, help_text="The `next_cursor` of the page before.")
    limit = serializers.IntegerField(
        required=False, default=PAGE, min_value=1, max_value=_MOST, help_text="How many at most."
    )


def cursor_of(*key: int | str) -> str:
    """Return the text for the next request: everything after `key`."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def key_of(text: str | None, *kinds: type) -> Sequence[Any] | None:
    """Return the key behind a cursor, with values of these types; None for no cursor. Raises InvalidCursorError."""
    if text is None:
        return None
    try:
        key = json.loads(
            base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        )
    except (ValueError, binascii.Error, RecursionError):
        raise InvalidCursorError(text) from None
    if not isinstance(key, list) or [type(each) for each in key] != list(kinds):
        raise InvalidCursorError(text)
    if any(isinstance(each, int) and abs(each) > _LARGEST for each in key):
        raise InvalidCursorError(text)
    return key
