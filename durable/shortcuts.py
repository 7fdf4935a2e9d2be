"""For views, beside `django.shortcuts`: the run, or the answer 404."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import Http404

from durable.core.errors import RunNotFoundError
from durable.handles import Handle, aget_run, get_run

if TYPE_CHECKING:
    from durable.definitions import Workflow

__all__ = ["aget_run_or_404", "get_run_or_404"]


def get_run_or_404(run_id: str, of: Workflow[..., Any] | None = None) -> Handle:
    """The handle of a run. Raises Http404 where there is none; with `of`, also for a run of another workflow."""
    try:
        return get_run(run_id, of)
    except RunNotFoundError as error:
        raise Http404(str(error)) from error


async def aget_run_or_404(run_id: str, of: Workflow[..., Any] | None = None) -> Handle:
    """`get_run_or_404`, from async code."""
    try:
        return await aget_run(run_id, of)
    except RunNotFoundError as error:
        raise Http404(str(error)) from error
