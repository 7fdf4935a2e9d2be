"""The project's settings with an app whose classes move; PYTHONPATH says which version of its code."""

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "moving_shop"]
DURABLE = {"SWEEP_INTERVAL": 1.0}
