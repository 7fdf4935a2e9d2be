"""Tasks as durable runs: a backend for Django's tasks framework (`django.tasks`), or its backport `django-tasks`.

    TASKS = {"default": {"BACKEND": "durable.tasks.DurableBackend", "QUEUES": ["default"], "OPTIONS": {"max_retries":
    3}}}

An enqueued `@task` is a run of the workflow "durable.task", which calls the task in one step. `durable.tasks.backend`
says how what a task has is mapped to what a run has.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["DurableBackend"]


def __getattr__(name: str) -> Any:
    """Return `DurableBackend`: for Django's own framework if Django has one, else for the backport."""
    if name != "DurableBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "builtin" if find_spec("django.tasks") is not None else "backport"
    return import_module(f"durable.tasks.{home}").DurableBackend
