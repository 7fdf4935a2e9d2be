"""What runs are about: instances of the project's models, by the labels of their models and their primary keys as text.

Owns the form in which an instance is kept, compared and written ("shop.order:42"). A proxy stands for its concrete
model; a model that inherits a table is another one than its parent. Processes that start no run about something, and
show none, do without this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_noop

from durable.core.new_runs import MAX_KEY, MAX_SUBJECTS, Subject
from durable.core.words import Sentence


def label_of(model: type[models.Model]) -> str:
    """Return the label under which a model's instances are kept: that of its concrete model, "shop.order"."""
    return str((model._meta.concrete_model or model)._meta.label_lower)


def subject_of(instance: Any, *, saved: bool = False) -> Subject:
    """Return the instance as what a run is about.

    Raises TypeError for anything else than a model's instance, and ValueError for one without a primary key; with
    `saved`, also for one that was not saved.
    """
    if not isinstance(instance, models.Model):
        raise TypeError(
            f"a run is about an instance of a model, or a list of them, not {instance!r:.64}: write about=order, with an "
            "order that is saved"
        )
    if instance.pk is None or (saved and instance._state.adding):
        name = instance._meta.object_name
        raise ValueError(f"this {name} is not saved, so it has no row that a run could be about: save it first")
    return Subject(label_of(type(instance)), _key(type(instance), instance.pk))


def subjects_of(about: Any, *, saved: bool = False) -> list[Subject]:
    """Return an instance, or each of several, as what a run is about, without duplicates. Raises as `subject_of`."""
    if isinstance(about, models.Model):
        return [subject_of(about, saved=saved)]
    if isinstance(about, type | str | bytes | Mapping) or not isinstance(about, Iterable):
        return [subject_of(about, saved=saved)]  # which raises
    return list(dict.fromkeys(subject_of(each, saved=saved) for each in about))


def checked_subjects(about: Any) -> tuple[Subject, ...]:
    """Return what a start says that its run is about: saved instances, or texts such as "shop.order:42".

    Raises TypeError and ValueError for what no run can be about, and for more than 100 instances.
    """
    several = isinstance(about, Iterable) and not isinstance(about, str | bytes | models.Model | Mapping | type)
    read = (
        read_subject(each) if isinstance(each, str) else subject_of(each, saved=True)
        for each in (about if several else [about])
    )
    found = list(dict.fromkeys(read))
    if len(found) > MAX_SUBJECTS:
        raise ValueError(
            f"a run is about at most {MAX_SUBJECTS} instances, and these are {len(found)}: let it be about what they belong "
            "to, or start a child about each"
        )
    return tuple(found)


def read_subject(text: str) -> Subject:
    """Parse an instance written as "shop.order:42": app, model, and primary key. No query.

    Raises ValueError for a text of another form, and for a model or a key that there cannot be.
    """
    label, colon, key = text.partition(":")
    if not colon or not key or label.count(".") != 1:
        words = gettext_noop('write what a run is about as app.model:key, "shop.order:42": {text}')
        raise ValueError(Sentence(words, text=repr(text[:64])))
    model = model_of(label)
    if model is None:  # it may have been removed, and its runs are still there
        if not (label.isprintable() and " " not in label) or len(key) > MAX_KEY:
            raise ValueError(Sentence(gettext_noop("there is no model {label}"), label=repr(label[:64])))
        return Subject(label.lower(), key)
    try:
        return Subject(label_of(model), _key(model, model._meta.pk.to_python(key)))
    except (ValidationError, ValueError, TypeError, OverflowError):
        words = gettext_noop("{label} has no primary key such as {key}")
        raise ValueError(Sentence(words, label=label[:64], key=repr(key[:64]))) from None


def model_of(label: str) -> type[models.Model] | None:
    try:
        return apps.get_model(label)
    except (LookupError, ValueError):
        return None


def _key(model: type[models.Model], pk: Any) -> str:
    """Return a primary key as text: "42", a UUID with its hyphens, a text as it is. Raises ValueError and TypeError."""
    if isinstance(pk, tuple):
        raise TypeError(
            f"{model._meta.label} has a primary key of several columns, and what a run is about has one: let it be about "
            "a related object"
        )
    text = str(pk)
    if not 1 <= len(text) <= MAX_KEY:
        raise ValueError(
            f"the primary key of this {model._meta.label} has {len(text)} characters, and 1 to {MAX_KEY} fit"
        )
    return text
