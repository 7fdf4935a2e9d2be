"""The app's migrations, and the operations that a project's own migrations have for recorded runs."""

from durable.renames.classes import MoveClass, MoveHandler
from durable.renames.operations import RenameQueue, RenameStep, RenameWorkflow

__all__ = ["MoveClass", "MoveHandler", "RenameQueue", "RenameStep", "RenameWorkflow"]
