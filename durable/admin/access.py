"""Access: the actor behind a request, that user's permissions, and the runs that a request may see.

Closed by default: if `ADMIN_RUNS` limits the runs, an address that `LIMITED` does not name is refused. Every module of
the admin takes runs from here. `tests/admin/test_sight.py` refuses a module that reads runs in another way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.inspection import bulks
from durable.inspection.bulks import BulkSummary
from durable.inspection.run_rules import RunRule, existing_among, find_among
from durable.models import Run
from durable.operations.audit import Actor


def actor_of(request: HttpRequest) -> Actor:
    """Return the user as an actor for the audit log."""
    return Actor("admin", user=request.user)


def may(request: HttpRequest, permission: str) -> bool:
    """Return whether the user has this permission of the app durable: being staff is not enough."""
    return request.user.is_active and actor_of(request).may(permission)


class ReadOnly:
    """The permissions of a `ModelAdmin` whose pages are for users who may see runs, and change nothing by themselves.

    Django gives the methods an object, which is not asked.
    """

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, "view_run")

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return may(request, "view_run")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


def demand(request: HttpRequest, permission: str) -> None:
    """Raise PermissionDenied unless the user has the permission."""
    if not may(request, permission):
        raise PermissionDenied(
            _("You may not see this: it needs the permission %(permission)s. Ask an administrator to grant it.")
            % {"permission": f"durable.{permission}"}
        )


_RULE: Final = RunRule("ADMIN_RUNS", is_kept=True)
visible_runs: Final = _RULE.runs
within: Final = _RULE.within
seen_by: Final = _RULE.sees

#: The addresses whose pages show nothing of hidden runs; all others are refused if the rule limits the runs.
LIMITED: Final = frozenset(
    {
        *("inbox", "question", "changelist", "save_view", "delete_view", "bulk", "bulk_result", "bulk_live"),
        *("running", "causes", "cause", "workflow", "workflow_start"),
        *("change", "lead", "live", "stream", "step", "running_step", "export", "payload", "raw", "compare"),
        *("act", "settle", "send", "message_act", "replay", "give_output", "edit_input"),
    }
)


def is_limited() -> bool:
    """Return whether users may see only some runs."""
    return _RULE.is_set


def existing(request: HttpRequest, ids: Iterable[str | None]) -> frozenset[str]:
    """Return the ids whose runs the request may see; no query if all are visible."""
    return existing_among(within(request), ids)


def find_run(request: HttpRequest, run_id: str) -> Run | None:
    """Return the run with this id, without its payloads; None if the request may not see it.

    A user may see the background run of the user's own bulk: a rule about workflows cannot tell that it is the user's.
    """
    run = find_among(visible_runs(request), run_id)
    if run is None and is_limited() and find_bulk(request, run_id) is not None:
        run = find_among(Run.objects.using(conf.DATABASE), run_id)
    return run


def find_bulk(request: HttpRequest, bulk_id: str) -> BulkSummary | None:
    """Return a bulk or None. If the runs are limited, only one of the user's own whose runs are all visible."""
    limit = within(request)
    if limit is None:
        return bulks.find_bulk(bulk_id)
    return bulks.find_limited_bulk(bulk_id, limit, request.user.pk)


def is_offered(name: str) -> bool:
    """Return whether there is a page at the address of this name."""
    return name in LIMITED or not is_limited()


def demand_offered(name: str) -> None:
    """Raise PermissionDenied if the rule excludes the page at this address."""
    if not is_offered(name):
        raise PermissionDenied(refusal())


def refusal() -> str:
    """Return why the page is not available."""
    return _(
        'This page is about the runs of all users. The setting DURABLE["ADMIN_RUNS"] limits the runs that a user sees, so '
        "this project does not show it."
    )
