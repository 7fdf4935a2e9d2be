"""Who may see and do what over an interface of JSON: permissions, the runs that a user may see, the workflows offered.

`DURABLE["API_RUNS"]`, a function of the request and a queryset of runs, limits the runs that a user sees: no answer
discloses the others. `DURABLE["API_WORKFLOWS"]` limits what may be started. Knows no framework: of a request it needs
the user, and the project's function gets the request as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from django.contrib.auth.models import AnonymousUser

from durable import runtime
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.core.registry import INTERNAL, UnknownWorkflowError
from durable.definitions import Workflow
from durable.inspection.run_rules import RunRule, existing_among, find_among
from durable.listings.problems import ProblemError
from durable.listings.shapes import Seen
from durable.models import Run
from durable.operations.audit import Actor, OperationDeniedError, acting_as, audited
from durable.operations.common import workflow_named

_RULE: Final = RunRule("API_RUNS")
seen_by: Final = _RULE.sees
visible_runs: Final = _RULE.runs


class HasUser(Protocol):
    """A request, with the user that the interface has authenticated."""

    @property
    def user(self) -> Any:
        """A user of Django, or an object with the same permissions."""


def is_signed_in(request: HasUser) -> bool:
    """Return whether the request has an active user."""
    user = request.user
    return user is not None and not isinstance(user, AnonymousUser) and bool(user.is_authenticated and user.is_active)


def actor_of(request: HasUser) -> Actor:
    """Return the user as an actor."""
    return Actor("api", user=request.user)


def owner_of(request: HasUser) -> str:
    """Return the user's key, for limits that apply to each user."""
    user = request.user
    return f"{user.pk}" if user.pk is not None else f"{user}"


def may(request: HasUser, permission: str) -> bool:
    """Return whether the user has this permission of the app durable."""
    return actor_of(request).may(permission)


def is_limited() -> bool:
    """Return whether users may see only some runs."""
    return _RULE.is_set


def refuse_schedules_if_limited() -> None:
    """Raise a problem if users may see only some runs: a schedule starts runs for everybody."""
    if is_limited():
        detail = "Schedules start runs for everybody: they are not available where API_RUNS limits the runs of users."
        raise ProblemError("permission-denied", 403, detail)


def refuse_events(*, if_limited: bool) -> None:
    """Raise a problem if users may see only some runs: an event reaches runs of everybody."""
    if if_limited:
        detail = "Events reach runs of everybody: they are not available where API_RUNS limits the runs of users."
        raise ProblemError("permission-denied", 403, detail)


def visible_run(request: HasUser, run_id: str) -> Run:
    """Return the run with this id, without its payloads.

    Raises RunNotFoundError, also if the user may not see the run.
    """
    run = find_among(visible_runs(request), run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    return run


def existing(request: HasUser, ids: Iterable[str | None]) -> frozenset[str]:
    """Return the ids whose runs the user may see; one query, none if visibility is not limited."""
    return existing_among(_RULE.within(request), ids)


def admit(request: HasUser, action: str, run_id: str, *, needs: str = "") -> Run | None:
    """Return the run to act on, None without an id. `needs` is a permission in addition to that of the action.

    Raises OperationDeniedError if the user lacks a permission, and RunNotFoundError if the user may not see the run;
    either is written to the audit log.
    """
    actor = actor_of(request)
    with acting_as(actor), audited(runtime.current(), action, run_id):
        if needs and not actor.may(needs):
            raise OperationDeniedError(action, needs, actor.name)
        return visible_run(request, run_id) if run_id else None


def seen_of(request: HasUser) -> Seen:
    """Return what this user may see, as of now."""
    return Seen(
        now=runtime.current().now(),
        within=_RULE.within(request),
        payloads=may(request, "view_payload"),
        user=request.user.pk,
        person=request.user,
    )


def startable(name: str) -> Workflow[Any, Any]:
    """Return the workflow of this name. Raises a problem if there is none, or if it may not be started over REST."""
    try:
        found, problem = workflow_named(name), None
    except UnknownWorkflowError as error:
        found, problem = None, error
    if not is_offered(name) and (found is None or not is_offered(found.name)):
        raise ProblemError("unknown-workflow", 422, f'No workflow "{name}" can be started over REST in this project.')
    if problem is not None:
        nearest = [each for each in problem.nearest if is_offered(each)]
        raise ProblemError("unknown-workflow", 422, f"{problem}.", nearest=nearest) from None
    if not isinstance(found, Workflow):
        raise ProblemError("unknown-workflow", 422, f'"{name}" is started by durable itself, and not from here.')
    return found


def is_offered(name: str) -> bool:
    """Return whether the settings allow starting this workflow over REST; durable's own workflows are excluded."""
    if name.startswith(INTERNAL):
        return False
    names = conf.API_WORKFLOWS
    return names is None or any(name == each or (each.endswith(".") and name.startswith(each)) for each in names)
