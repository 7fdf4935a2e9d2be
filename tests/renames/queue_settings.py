"""The project's settings with a migration that renames a queue: what the processes of these tests run with.

`QUEUE` is the name by which their code knows the queue.
"""

import os

from project.settings import RQ_QUEUES as BASE_QUEUES
from tests.renames.settings import *  # noqa: F403  # a settings module extends another one in this way
from tests.renames.settings import DURABLE as BASE_DURABLE

MIGRATION_MODULES = {"renames": "tests.renames.queue_migrations"}
QUEUE = os.environ.get("NAME_OF_QUEUE", "default")
RQ_QUEUES = {QUEUE: BASE_QUEUES["default"]}
DURABLE = {**BASE_DURABLE, "QUEUE": QUEUE, "REDIS": os.environ.get("WITHOUT_REDIS") is None}
