"""What runs are about, seen from the instances: their newest runs, and what their deletion cancels.

Owns the receiver of Django's `post_delete`. It is connected for the models that need it and for no other: a model with
such a receiver is deleted row by row, while others keep Django's deletion by one statement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import local
from typing import Any, Final

from django.apps import apps
from django.db import connections, models, transaction
from django.db.models.expressions import RawSQL
from django.db.models.signals import post_delete, pre_delete

from durable import runtime
from durable.conf import conf
from durable.core.current import running_run
from durable.core.errors import InvalidTransitionError, RunNotFoundError
from durable.core.new_runs import Subject
from durable.core.records import ENDED
from durable.models import Run, RunSubject
from durable.models.run import RunQuerySet
from durable.models.subjects import label_of, model_of, subject_of
from durable.operations import audit, lifecycle

logger = logging.getLogger("durable.operations")

#: How many of the newest runs of an instance `newest_of` looks through.
LOOKED_THROUGH: Final = 50
_AT_ONCE: Final = 1_000  # instances in one statement

_ENDED: Final = frozenset(state.value for state in ENDED)
_followed: set[str] = set()  # the labels of the models whose deletions this process follows


def newest_of(runs: RunQuerySet, model: str, keys: Sequence[str], most: int) -> dict[str, list[Run]]:
    """Return up to `most` of these `runs` about each of these instances of a model: open ones first, then the newest.

    The newest 50 runs about each instance are looked through, along their index. One statement. The runs are read
    without their inputs and outputs.
    """
    found: dict[str, list[Run]] = {key: [] for key in keys}
    if not found:
        return found
    alias = runs.db
    rows = RunSubject.objects.using(alias).filter(id__in=_newest(alias, model, list(found)))
    if runs.query.where or runs.query.is_sliced:  # a user sees some of them
        rows = rows.filter(run__in=runs.order_by().values("pk") if not runs.query.is_sliced else runs.values("pk"))
    for row in rows.select_related("run").defer("run__input", "run__output"):
        found[row.object_pk].append(row.run)
    for about in found.values():
        about.sort(key=lambda run: (run.state not in _ENDED, run.created_at, run.id), reverse=True)
        del about[most:]
    return found


def _newest(alias: str, model: str, keys: Sequence[str]) -> RawSQL:
    """Return the ids of the newest rows of each of these instances."""
    packed = [RunSubject._meta.get_field("object_pk").get_prep_value(key) for key in keys]
    if connections[alias].vendor == "postgresql":
        return RawSQL(_NEWEST_ALONG_INDEX, [packed, model, LOOKED_THROUGH])  # noqa: S611  # the SQL is fixed
    slots = ", ".join(["%s"] * len(packed))
    return RawSQL(_NEWEST_BY_WINDOW.format(slots=slots), [model, *packed, LOOKED_THROUGH])  # noqa: S611  # as above


_NEWEST_ALONG_INDEX: Final = """
SELECT newest.id FROM unnest(%s::text[]) AS wanted(object_pk) CROSS JOIN LATERAL (
  SELECT id FROM durable_runsubject WHERE model = %s AND object_pk = wanted.object_pk
  ORDER BY created_at DESC, run_id DESC LIMIT %s
) AS newest
"""
_NEWEST_BY_WINDOW: Final = """
SELECT id FROM (
  SELECT id, ROW_NUMBER() OVER (PARTITION BY object_pk ORDER BY created_at DESC, run_id DESC) AS place
  FROM durable_runsubject WHERE model = %s AND object_pk IN ({slots})
) AS placed WHERE place <= %s
"""


def follow_deletions(model: type[models.Model] | str, *, is_declared: bool) -> None:
    """Let this process cancel runs about deleted instances of a model, given as its class or its label.

    Without `is_declared`, log a warning, once: other processes may not follow the deletions.
    """
    found = model_of(model) if isinstance(model, str) else model
    if found is None:
        return
    concrete = found._meta.concrete_model or found
    label = label_of(concrete)
    if label in _followed:
        return
    _followed.add(label)
    for each in apps.get_models(include_auto_created=True):
        if each._meta.concrete_model is concrete:  # the signal of a proxy names the proxy
            pre_delete.connect(_note, sender=each, dispatch_uid="durable.subjects")
            post_delete.connect(_cancel_about, sender=each, dispatch_uid="durable.subjects")
    if not is_declared:
        text = (
            'runs about %s are started with when_deleted="cancel", and only the processes that start them know: write '
            "durable.triggers.on_delete(%s) into a module `workflows`, so that each process does"
        )
        logger.warning(text, label, found._meta.object_name)


class _Deletion(local):
    """The deletion that a thread is at: its instances, which Django announces before it deletes the first of them.

    So the runs of all instances of a model are looked up at once. `found` are those of the models looked up so far.
    """

    origin: Any = None
    keys: dict[str, list[str]]
    found: dict[str, dict[str, list[str]]]

    def note(self, origin: Any, subject: Subject) -> None:
        """Note an instance that will be deleted.

        All instances of a deletion are noted before the first is deleted. One that is noted after a look belongs to
        another deletion by the same instance or queryset, as when the one before was rolled back.
        """
        if self.origin is not origin or self.found:
            self.origin, self.keys, self.found = origin, {}, {}
        self.keys.setdefault(subject.model, []).append(subject.key)

    def runs(self, origin: Any, subject: Subject) -> list[str]:
        """Return the open runs to cancel because the instance is deleted."""
        store = runtime.current().store
        if self.origin is not origin or origin is None:
            return store.to_cancel(subject.model, [subject.key]).get(subject.key, [])
        if subject.model not in self.found:
            keys = self.keys.get(subject.model, [])
            found: dict[str, list[str]] = {}
            for start in range(0, len(keys), _AT_ONCE):
                found |= store.to_cancel(subject.model, keys[start : start + _AT_ONCE])
            self.found[subject.model] = found
        return self.found[subject.model].pop(subject.key, [])


_deletion = _Deletion()


def _note(instance: models.Model, origin: Any = None, **_: Any) -> None:
    if origin is not None:
        _deletion.note(origin, subject_of(instance))


def _cancel_about(instance: models.Model, using: str, origin: Any = None, **_: Any) -> None:
    """Cancel the open runs about a deleted instance, in the transaction of its deletion."""
    subject, reason = subject_of(instance), f"{instance._meta.verbose_name} {instance.pk} was deleted"
    own = conf.DATABASE
    if using != own and connections[using].in_atomic_block and not runtime.is_replaced():
        # the runs are in another database
        transaction.on_commit(lambda: _cancel(_deletion.runs(None, subject), reason), using=using)
    else:
        _cancel(_deletion.runs(origin, subject), reason)


def _cancel(run_ids: Sequence[str], reason: str) -> None:
    for run_id in run_ids:
        if run_id == running_run():  # which deletes what it is about
            continue
        with audit.as_code():  # who may delete the instance need not be allowed to cancel
            _unless_over(partial(lifecycle.cancel, run_id, reason=reason))


def _unless_over(cancel: Callable[[], None]) -> None:
    try:
        cancel()
    except (InvalidTransitionError, RunNotFoundError):  # it has ended meanwhile, or is being cancelled
        return
