"""A run's id and a location as parts of a URL, and an id back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote as url_quote

from django.contrib.admin.utils import quote, unquote
from django.urls import reverse
from django.utils.http import RFC3986_SUBDELIMS

_ANY: Final = "anyrun"  # a key that is quoted by itself
_SAFE: Final = f"{RFC3986_SUBDELIMS}/~:@"  # what `reverse` leaves as it is

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


def url_maker(name: str, site: str, *rest: str) -> Callable[[str], str]:
    """Return a function of an id, or of another key, that returns the URL of its page in an admin site.

    `rest` are what the URL has behind the key. For a page with hundreds of links: the address is looked up once.
    """
    url = reverse(f"admin:durable_run_{name}", args=[_ANY, *rest], current_app=site)
    before, _, after = url.rpartition(_ANY)
    return lambda given: f"{before}{url_quote(as_key(given), safe=_SAFE)}{after}"
