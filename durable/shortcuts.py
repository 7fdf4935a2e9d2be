"""Shortcuts for views, like those of `django.shortcuts`: a run's handle or 404, and the runs of a list page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from django.http import Http404

from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.handles import Handle, aget_run, get_run
from durable.models import Run
from durable.operations.common import in_async

if TYPE_CHECKING:
    from django.db.models import Model

    from durable.definitions import Workflow

__all__ = ["aget_run_or_404", "aruns_of", "get_run_or_404", "runs_of"]

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


def runs_of(instances: Iterable[Model], *, most: int = 10) -> dict[Any, list[Run]]:
    """Return the runs about each of these instances of one model, by primary key: `runs_of(page.object_list)`.

    An instance has a list of at most `most` rows of `durable.models.Run`: open ones first, then the newest. The newest
    50 runs about it are looked through; `Run.objects.about(instance)` finds all. An instance without runs has an empty
    list. One query, besides that of a queryset that was not evaluated; the runs are read without inputs and outputs.

    It asks for no permission: show what your users may see. Raises TypeError for instances of several models, and
    ValueError for one that is not saved.
    """
    from durable.models.subjects import subject_of  # few processes need them
    from durable.operations.subjects import newest_of

    subjects = {each.pk: subject_of(each) for each in instances}
    models = {each.model for each in subjects.values()}
    if len(models) > 1:
        raise TypeError(
            f"runs_of takes instances of one model, not of {' and '.join(sorted(models))}: call it for each"
        )
    if not models:
        return {}
    keys = [each.key for each in subjects.values()]
    found = newest_of(Run.objects.using(conf.DATABASE), models.pop(), keys, most)
    return {pk: found[each.key] for pk, each in subjects.items()}


aruns_of = in_async(runs_of)
