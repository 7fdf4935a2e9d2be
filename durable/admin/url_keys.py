"""A run's id and a location as parts of a URL, and an id back."""

from __future__ import annotations

from urllib.parse import quote as url_quote

from django.contrib.admin.utils import quote, unquote

__all__ = ["as_id", "as_key", "location_query"]

#: Browsers interpret these as paths, and Django's quoting leaves them as they are. No other id is quoted like these.
_PLACES = {".": "_2E", "..": "_2E_2E"}
_IDS = {key: run_id for run_id, key in _PLACES.items()}


def as_key(run_id: str) -> str:
    """Quote the id for a URL."""
    return _PLACES.get(run_id) or str(quote(run_id))


def as_id(key: str) -> str:
    """Return the id that `as_key` quoted."""
    return _IDS.get(key) or str(unquote(key))


def location_query(location: str) -> str:
    """A location as an address' parameter."""
    return f"?at={url_quote(location, safe='')}"
