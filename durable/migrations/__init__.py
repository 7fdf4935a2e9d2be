"""The app's migrations, and the operations that a project's own migrations have for recorded runs."""

from durable.renames.operations import RenameStep

__all__ = ["RenameStep"]
