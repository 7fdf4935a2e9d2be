"""Note the runs whose histories are long, so that they are counted before an operator looks at them.

Owns the note alone. `durable.inspection.history_counts` counts, in the process of the sweep. A note that is lost costs
the first look at the run's page some tenths of a second.
"""

from __future__ import annotations

import logging

from django.db import Error

from durable.conf import conf
from durable.core import clock
from durable.execution.connections import close_connections
from durable.models import HistoryCount

logger = logging.getLogger("durable.worker")


def note(run_id: str) -> None:
    """Note that a pass of the run has ended and that its history is long; one statement.

    Raises nothing of the database.
    """
    row = HistoryCount(run_id=run_id, noted_at=clock.now())
    try:
        HistoryCount.objects.using(conf.DATABASE).bulk_create(
            [row], update_conflicts=True, unique_fields=["run"], update_fields=["noted_at"]
        )
    except Error as error:
        close_connections()
        logger.info("the long history of run %s is not noted: %s", run_id, error, extra={"run_id": run_id})
