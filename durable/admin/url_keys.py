"""A run's id as a part of an address, and back."""

from __future__ import annotations

from django.contrib.admin.utils import quote, unquote

__all__ = ["as_id", "as_key"]

#: What browsers take for places, and Django's quoting leaves as it is. No other id is quoted like these.
_PLACES = {".": "_2E", "..": "_2E_2E"}
_IDS = {key: run_id for run_id, key in _PLACES.items()}


def as_key(run_id: str) -> str:
    """The id for an address."""
    return _PLACES.get(run_id) or str(quote(run_id))


def as_id(key: str) -> str:
    """The id that `as_key` was given."""
    return _IDS.get(key) or str(unquote(key))
