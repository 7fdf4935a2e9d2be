"""Triggers: what happens to the project's models starts runs, or cancels them.

Write them into a module `workflows`, which durable imports in each process. They are receivers of Django's signals, and
miss what sends none: `QuerySet.update()`, `bulk_create()`, `bulk_update()`, `_raw_delete()`, SQL, and cascades of the
database.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from django.apps import apps
from django.db import connections, models, transaction
from django.db.models.signals import post_save

from durable import runtime
from durable.conf import conf
from durable.operations.subjects import follow_deletions

if TYPE_CHECKING:
    from durable.definitions import Workflow

__all__ = ["on_delete", "on_save"]

M = TypeVar("M", bound=models.Model)


def on_save(
    model: type[M],
    workflow: Workflow[..., Any],
    *,
    when: Callable[[M, bool], bool] | Callable[[M], bool] | None = None,
    key: Callable[[M], str] | None = None,
    arguments: Callable[[M], tuple[Any, ...]] | None = None,
) -> None:
    """Start a run about each saved instance of a model: `on_save(Order, fulfil, when=is_paid)`.

    The start is in the transaction of the save: after a rollback there is neither. `when` decides whether a run is
    started; without it, each new row starts one. It is called with the instance and, if it takes two arguments, whether
    that is a new row. The workflow is called with the instance's primary key, or with what `arguments` returns for the
    instance, a tuple. How it is started is said by `using`: `on_save(Order, fulfil.using(queue="slow"), ...)`. It is
    about the instance, unless `using(about=...)` says something else.

    With `key`, a function of the instance, at most one open run of the workflow has the key that it returns; `using`
    says what a further start does (`if_open`). Without a key each save for which `when` is true starts a run.

    Fixtures (`loaddata`, raw saves) start nothing. What sends no signal starts nothing either: `update()`,
    `bulk_create()`, `bulk_update()`, SQL. An error of `when`, `key` or the start is raised by `save()`. If the model is
    in another database than the runs, the run is started when its transaction commits. A proxy's own saves count as
    its model's if it is given; those of a model that inherits the table do not.

    Raises TypeError for a `model` that is none.
    """
    if not (isinstance(model, type) and issubclass(model, models.Model)):
        raise TypeError(f"on_save takes a model first, not {model!r:.64}: write on_save(Order, fulfil)")
    trigger = _Trigger(workflow, _is_new if when is None else _with_created(when), key, arguments or _key_of)
    for each in apps.get_models(include_auto_created=True):
        if each is model or (each._meta.proxy and issubclass(each, model)):  # the signal of a proxy names the proxy
            post_save.connect(trigger.saved, sender=each, weak=False)


def _is_new(_instance: models.Model, created: bool) -> bool:  # as the signal gives it
    return created


def _with_created(when: Callable[..., bool]) -> Callable[[Any, bool], bool]:
    """Return `when` as a function of the instance and whether it is a new row."""
    if isinstance(when, attrgetter | methodcaller):  # Python knows no signature of theirs, or one for any arguments
        return lambda instance, _created: when(instance)
    try:
        signature = inspect.signature(when)
    except (TypeError, ValueError):  # compiled code
        return when
    try:
        signature.bind("the instance", "whether it is new")
    except TypeError:
        return lambda instance, _created: when(instance)
    return when


def _key_of(instance: models.Model) -> tuple[Any, ...]:
    return (instance.pk,)


@dataclass(frozen=True, slots=True)
class _Trigger:
    """What a save starts."""

    workflow: Workflow[..., Any]
    when: Callable[[Any, bool], bool]
    key: Callable[[Any], str] | None
    arguments: Callable[[Any], tuple[Any, ...]]

    def saved(self, instance: models.Model, *, created: bool, raw: bool, using: str, **_: Any) -> None:
        """Start a run about the saved instance if the trigger's condition holds."""
        if raw or not self.when(instance, created):
            return
        how = self.workflow if self.workflow.is_about_something else self.workflow.using(about=instance)
        if self.key is not None:
            how = how.using(key=self.key(instance))
        start = partial(how.start, *self.arguments(instance))
        if using != conf.DATABASE and connections[using].in_atomic_block and not runtime.is_replaced():
            transaction.on_commit(start, using=using)  # the runs are in another database
        else:
            start()


def on_delete(model: type[models.Model]) -> None:
    """Cancel the open runs about a deleted instance that were started with `using(about=..., when_deleted="cancel")`.

    They are cancelled in the transaction of the deletion, in each process that has called this. A deletion of many
    instances costs a query for each thousand. If the model is in another database than the runs, they are cancelled
    when the transaction of the deletion commits.
    """
    follow_deletions(model, is_declared=True)
