"""Workflows by name, where a migration may have given them another one.

A process reads what migrations have renamed when it comes to a name that it does not know, or that does not fit.
"""

from __future__ import annotations

from durable import runtime
from durable.core import registry
from durable.core.registry import UnknownWorkflowError, WorkflowDefinition
from durable.core.renames import is_same_workflow


def workflow_named(name: str) -> WorkflowDefinition:
    """Return the definition of the workflow that has this name, or had it. Raises UnknownWorkflowError."""
    try:
        return registry.get(name)
    except UnknownWorkflowError:
        runtime.current().store.learn_names()
        return registry.get(name)


def is_of_workflow(found: str, workflow: str) -> bool:
    """Return True if both are names of one workflow."""
    if found == workflow:
        return True
    runtime.current().store.learn_names()
    return is_same_workflow(found, workflow)
