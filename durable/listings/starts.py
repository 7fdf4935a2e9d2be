"""A start that an interface of JSON was asked for, and the reference to the run that it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.definitions import Workflow
from durable.listings.problems import ProblemError
from durable.models import Run
from durable.notifier import redis_clients
from durable.operations import Started
from durable.operations.audit import UnseenRunError
from durable.operations.start_options import READ


def made(wanted: str | None, make: Callable[[], Started]) -> Started:
    """Return the run that `make` creates, with the id `wanted` if that is not None.

    Call this as an actor with `seen_by`.

    Raises a problem, and creates nothing, if the user would not see the run. If another user's run has the id, the
    answer does not disclose that the run exists.
    """
    try:
        return make()
    except UnseenRunError as error:
        if error.key:
            detail = f'An open run that you may not see has the key "{error.key}", so none is started: use another key.'
            raise ProblemError("run-not-found", 404, detail) from None
        what = "this run" if wanted is None else f'the run "{wanted}"'
        detail = f"You would not see {what}, so it is not made: name one that you may see, by another id."
        raise ProblemError("run-not-found", 404, detail) from None


def reference_of(run_id: str) -> dict[str, Any]:
    """Return a `RunReference` of the run, as JSON data. Raises RunNotFoundError."""
    run = Run.objects.using(conf.DATABASE).only("id", "workflow", "state").filter(pk=run_id).first()
    if run is None:
        raise RunNotFoundError(run_id)
    return {"id": run.id, "workflow": run.workflow, "state": run.state}


def check_queue_served(queue: str | None) -> None:
    """Raise a problem for a queue that the settings lack."""
    names = sorted(redis_clients.queue_names())
    if queue is not None and queue not in names and conf.REDIS:
        detail = f"No worker can serve this queue: the project's queues are {', '.join(names)}."
        errors = [{"at": "queue", "detail": detail, "code": "unknown"}]
        raise ProblemError("invalid-request", 400, f"queue: {detail}", errors=errors)


def start_asked(workflow: Workflow[Any, Any], given: Mapping[str, Any]) -> Started:
    """Start a run with the `args`, the `kwargs` and the options of a start that were given, and send it the `message`.

    Raises what `Workflow.start` raises, and a problem for arguments that do not fit.
    """
    try:
        how = workflow.using(**{name: given[name] for name in READ if name in given})
        if (message := given.get("message")) is None:
            handle = how.start(*given["args"], **given["kwargs"])
        else:
            handle = how.start_or_send(message["queue"], message["body"], *given["args"], **given["kwargs"])
    except (TypeError, ValueError) as error:
        raise ProblemError("arguments-refused", 422, f"{error}.") from None
    return Started(handle.id, bool(handle.is_new))
