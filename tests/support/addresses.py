"""The addresses of the project, walked from its URLconf, so that a new one is missed by no test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from django.urls import URLPattern, URLResolver, get_resolver, reverse

#: Pages of Django's own that durable adds to.
_AROUND = {"admin:index", "admin:app_list"}


class Asked(Protocol):
    """An address as a test asks it."""

    @property
    def keys(self) -> Sequence[Any]:
        """The parts of its path; one in braces stands for what a site has made."""

    @property
    def query(self) -> str:
        """What follows the path."""


def path_of(name: str, address: Asked, site: Mapping[str, str]) -> str:
    """The path of an address of this site."""
    return reverse(name, args=[site.get(each, each) for each in address.keys]) + address.query


def names_of_admin() -> set[str]:
    """The names of durable's addresses in the admin, and of the two pages that lead there."""
    return {name for name in _names(get_resolver()) if name.startswith("admin:durable_")} | _AROUND


def names_of_interface() -> set[str]:
    """The names of the addresses of the interface."""
    return {name for name in _names(get_resolver()) if name.startswith("durable_api:")}


def _names(resolver: URLResolver, space: str = "") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from _names(pattern, f"{space}{pattern.app_name}:" if pattern.app_name else space)
        elif isinstance(pattern, URLPattern) and pattern.name:
            yield f"{space}{pattern.name}"
