"""The system check of the workflows' code: what `durable lint` finds, as warnings of `manage.py check`.

No finding is an error to Django: an error would keep `migrate` and `runserver` from starting. Hints are left to `durable lint`.
"""

from __future__ import annotations

from pathlib import Path

from django.core.checks import CheckMessage, Warning, register

from durable.inspection.workflow_code import files_of_workflows
from durable.lint import lint

__all__ = ["check_code"]


@register("durable")
def check_code(**_: object) -> list[CheckMessage]:
    """Check the code of the workflows that this project brings itself."""
    return [
        Warning(f"{each.path}:{each.line}: {each.message} ({each.workflow})", hint=each.fix, id=f"durable.{each.id}")
        for each in lint(map(Path, files_of_workflows()))
        if each.level != "hint"
    ]
