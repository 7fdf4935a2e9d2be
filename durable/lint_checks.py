"""The system check of the workflows' code: what `durable lint` finds, as warnings of `manage.py check`.

No finding is an error to Django: an error would keep `migrate` and `runserver` from starting. Hints are left to
`durable lint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from django.core.checks import CheckMessage, Warning, register

_is_left_out: ContextVar[bool] = ContextVar("_is_left_out", default=False)


@contextmanager
def without_code() -> Iterator[None]:
    """Leave files of code, migrations included, out of the checks within the block.

    A worker, and each of its processes, would read all of them at its start, and the warnings would come once for each.
    """
    token = _is_left_out.set(True)
    try:
        yield
    finally:
        _is_left_out.reset(token)


def leaves_code_out() -> bool:
    """Return True within a block of `without_code`."""
    return _is_left_out.get()


@register("durable")
def check_code(**_: object) -> list[CheckMessage]:
    """Check the code of the workflows that this project brings itself."""
    if leaves_code_out():
        return []
    from durable.inspection.workflow_code import files_of_workflows
    from durable.lint import lint

    return [
        Warning(f"{each.path}:{each.line}: {each.message} ({each.workflow})", hint=each.fix, id=f"durable.{each.id}")
        for each in lint(map(Path, files_of_workflows()))
        if each.level != "hint"
    ]
