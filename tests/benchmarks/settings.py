"""The project's settings as in production, with the workflows that are measured, and with a queue of their own."""

import os
from typing import Any

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import INSTALLED_APPS as BASE_APPS

DEBUG = False  # Django would keep a record of every statement
INSTALLED_APPS = [*BASE_APPS, "tests.benchmarks"]
QUEUE = "benchmarks"
RQ_QUEUES = {QUEUE: {"URL": os.environ["REDIS_URL"], "SERIALIZER": "rq.serializers.JSONSerializer"}}
#: The defaults, but for the queue.
DURABLE: dict[str, Any] = {"QUEUE": QUEUE}  # type: ignore[no-redef]  # replaced as a whole
