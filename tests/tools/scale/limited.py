"""What users see for whom `API_RUNS` and `ADMIN_RUNS` limit the runs.

`python -m tests.tools.scale.ask --limited workflow` asks as such a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from durable.models.run import RunQuerySet


def runs_of_a_workflow(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """A seventh of all runs, by a column that an index begins with."""
    return runs.filter(workflow="big.workflow_2")


def runs_of_few(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """Two runs of a million, by such a column."""
    return runs.filter(workflow__in=["rare.workflow_run-00000101", "rare.workflow_run-00000102"])


def runs_of_a_queue(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """No run, by a column that no index begins with."""
    return runs.filter(queue="nobody")


#: What both settings are, by the word of the option.
LIMITED: Final[Mapping[str, str]] = {
    "workflow": f"{__name__}.runs_of_a_workflow",
    "few": f"{__name__}.runs_of_few",
    "queue": f"{__name__}.runs_of_a_queue",
}
