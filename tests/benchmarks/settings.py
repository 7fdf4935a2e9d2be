"""The project's settings as in production, with the workflows that are measured, and with a queue of their own."""

import json
import os
from typing import Any

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import INSTALLED_APPS as BASE_APPS

DEBUG = False  # Django would keep a record of every statement
INSTALLED_APPS = [*BASE_APPS, "tests.benchmarks"]
QUEUE = "benchmarks"
#: Served by the worker of one measurement alone.
MANY_QUEUES = [f"tenant-{number}" for number in range(200)]
RQ_QUEUES = {
    name: {"URL": os.environ["REDIS_URL"], "SERIALIZER": "rq.serializers.JSONSerializer"}
    for name in (QUEUE, *MANY_QUEUES)
}
#: The defaults, but for the queue, and for what `tests.benchmarks.workers.settled` asks for.
DURABLE: dict[str, Any] = {"QUEUE": QUEUE, **json.loads(os.environ.get("BENCHMARKS_DURABLE", "{}"))}  # type: ignore[no-redef]  # replaced as a whole
