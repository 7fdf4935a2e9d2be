"""Workflows and queues by name, where a migration may have given them another one.

A process reads what migrations have renamed when it comes to a name that it does not know, or that does not fit.
"""

from __future__ import annotations

from durable import runtime
from durable.core import registry
from durable.core.ids import check_queue
from durable.core.registry import UnknownWorkflowError, WorkflowDefinition
from durable.core.renames import is_same_workflow, names_of_queue
from durable.notifier import redis_clients


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


def check_served(queue: str) -> str:
    """Return the queue if workers can serve it. Raises TypeError, and ValueError for one that the settings lack."""
    known = redis_clients.queue_names()
    if check_queue(queue) not in known:
        runtime.current().store.learn_queues()
        if not any(each in known for each in names_of_queue(queue)):
            raise ValueError(f'no worker can serve a queue "{queue[:64]}"; there are {", ".join(known) or "none"}')
    return queue
