"""The project's settings with a migration that renames a workflow: what the processes of these tests run with."""

from tests.renames.settings import *  # noqa: F403  # a settings module extends another one in this way

MIGRATION_MODULES = {"renames": "tests.renames.workflow_migrations"}
