"""Shortcuts for views, like those of `django.shortcuts`: return a run's handle, or answer 404."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import Http404

from durable.core.errors import RunNotFoundError
from durable.handles import Handle, aget_run, get_run

if TYPE_CHECKING:
    from durable.definitions import Workflow

__all__ = ["aget_run_or_404", "get_run_or_404"]


def get_run_or_404(run_id: str, of: Workflow[..., Any] | None = None) -> Handle:
    """Return the handle of a run. Raises Http404 without such a run; with `of`, also for another workflow's run."""
    try:
        return get_run(run_id, of)
    except RunNotFoundError as error:
        raise Http404(str(error)) from error


async def aget_run_or_404(run_id: str, of: Workflow[..., Any] | None = None) -> Handle:
    """Do what `get_run_or_404` does, from async code."""
    try:
        return await aget_run(run_id, of)
    except RunNotFoundError as error:
        raise Http404(str(error)) from error
