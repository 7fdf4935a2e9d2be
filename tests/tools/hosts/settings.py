"""The project's settings with the workflows of the study; the ways to its servers are in the environment."""

import json
import os

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import DATABASES as BASE_DATABASES
from project.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "tests.tools.hosts"]
DATABASES = {"default": {**BASE_DATABASES["default"], **json.loads(os.environ["HOSTS_DATABASE"])}}
_QUEUE = json.loads(os.environ["HOSTS_QUEUE"])
_QUEUE["SENTINELS"] = [tuple(each) for each in _QUEUE["SENTINELS"]]
RQ_QUEUES = {"default": {**_QUEUE, "SERIALIZER": "rq.serializers.JSONSerializer", "DEFAULT_TIMEOUT": -1}}
DURABLE = {"LEASE": float(os.environ.get("DURABLE_LEASE", "30"))}
