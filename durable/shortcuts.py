"""Shortcuts for views, like those of `django.shortcuts`: return a run's handle, or answer 404."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from django.http import Http404

from durable.core.errors import RunNotFoundError
from durable.handles import Handle, aget_run, get_run

if TYPE_CHECKING:
    from durable.definitions import Workflow

__all__ = ["aget_run_or_404", "get_run_or_404"]

R = TypeVar("R")


@overload
def get_run_or_404(run_id: str, of: None = None) -> Handle[Any]: ...
@overload
def get_run_or_404(run_id: str, of: Workflow[..., R]) -> Handle[R]: ...
def get_run_or_404(run_id: str, of: Workflow[..., Any] | None = None) -> Handle[Any]:
    """Return the handle of a run. Raises Http404 without such a run; with `of`, also for another workflow's run."""
    try:
        return get_run(run_id, of)
    except RunNotFoundError as error:
        raise Http404(str(error)) from error


@overload
async def aget_run_or_404(run_id: str, of: None = None) -> Handle[Any]: ...
@overload
async def aget_run_or_404(run_id: str, of: Workflow[..., R]) -> Handle[R]: ...
async def aget_run_or_404(run_id: str, of: Workflow[..., Any] | None = None) -> Handle[Any]:
    """Do what `get_run_or_404` does, from async code."""
    try:
        return await aget_run(run_id, of)
    except RunNotFoundError as error:
        raise Http404(str(error)) from error
