"""The error classes that are mistakes in a workflow's code: the workflow's own list, or that of the settings."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from durable.conf import DEFAULT_MISTAKES, conf

if TYPE_CHECKING:
    from durable.core.registry import WorkflowDefinition

__all__ = ["Mistakes", "check_mistakes", "error_classes", "mistakes_of"]

logger = logging.getLogger("durable")

#: Exception classes, or their dotted paths.
Mistakes = Iterable[type[Exception] | str]


def mistakes_of(definition: WorkflowDefinition | None) -> tuple[type[Exception], ...]:
    """Return the classes that count as mistakes for runs of this workflow.

    If the list is invalid, the default is used: the worker must continue with other runs, and in doubt nothing is
    undone.
    """
    given = None if definition is None else definition.mistakes
    try:
        return error_classes(tuple(conf.MISTAKES) if given is None else given)
    except (ImproperlyConfigured, TypeError) as error:
        logger.error("the default list of mistakes is in force: %s", error)
        return DEFAULT_MISTAKES


@lru_cache(maxsize=256)
def error_classes(given: tuple[Any, ...]) -> tuple[type[Exception], ...]:
    """Return the classes, resolving dotted paths. Raises ImproperlyConfigured for anything but an exception class."""
    return tuple(_error_class(each) for each in given)


def check_mistakes(given: Mistakes | None) -> tuple[type[Exception] | str, ...] | None:
    """Validate a workflow's own list of mistakes. Raises TypeError; dotted paths are resolved at their first use."""
    if given is None:
        return None
    classes = () if isinstance(given, str | type) else tuple(given)
    if isinstance(given, str | type) or not all(isinstance(each, str) or _is_error_class(each) for each in classes):
        raise TypeError(
            f"mistakes is a tuple of classes of exceptions, or of their dotted paths, not {given!r}: write "
            "mistakes=(KeyError,), and mistakes=() for none"
        )
    return classes


def _error_class(each: Any) -> type[Exception]:
    found = each
    if isinstance(each, str):
        try:
            found = import_string(each) if "." in each else getattr(builtins, each, None)
        except ImportError as error:
            raise ImproperlyConfigured(
                f"the list of mistakes names {each!r}, which cannot be imported: {error}"
            ) from error
    if not _is_error_class(found):
        raise ImproperlyConfigured(f"the list of mistakes has {each!r}, which is not an exception class")
    return found  # type: ignore[no-any-return]  # imported by name, and checked


def _is_error_class(each: Any) -> bool:
    return isinstance(each, type) and issubclass(each, Exception)
