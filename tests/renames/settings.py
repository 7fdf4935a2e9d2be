"""The project's settings with migrations that rename: what the processes of these tests run with."""

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "tests.renames"]
MIGRATION_MODULES = {"renames": "tests.renames.project_migrations"}
DURABLE = {"SWEEP_INTERVAL": 1.0}
