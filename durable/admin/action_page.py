"""Apply one verb to one run: a page that describes the effect and asks for a reason; a POST applies the verb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from durable import runtime
from durable.admin import access, pages
from durable.admin.forms import ActForm, with_fields
from durable.admin.pages import AdminPages
from durable.core.errors import (
    DurableError,
    HoldError,
    InvalidTransitionError,
    PayloadError,
    RunConflictError,
    RunNotFoundError,
    ScheduleError,
    StaleLimitError,
    StalePlanError,
    StaleRunError,
)
from durable.core.registry import BULK, UnknownWorkflowError
from durable.inspection.actions import verb_note
from durable.inspection.activities import activities_of_runs
from durable.inspection.explanation import explain_fully
from durable.inspection.progress import open_keys_of_long
from durable.inspection.wording import command, told
from durable.models import Run
from durable.operations.audit import OperationDeniedError, UnseenRunError, acting_as, audited, needed_by, revision
from durable.operations.eligibility import starts_of_run
from durable.operations.options import Flag
from durable.operations.verbs import RUN_VERBS, RunVerb, possible_verbs


class Refusal(Exception):  # not an error: the page shows this text instead of "done"
    """The verb was refused: the reason in words, and the status of the response."""

    def __init__(self, why: str, status: int) -> None:
        self.why = why
        self.status = status
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of a posted form. `result` is that of its action if that `is_done`; `problem` says why it was refused.

    `status` is the status of the response.
    """

    status: int = 200
    problem: str = ""
    result: Any = None
    is_done: bool = False


def attempt(form: forms.Form, act: Callable[[dict[str, Any]], Any]) -> Attempt:
    """Call `act` with the data of the form, if it was posted and is valid."""
    if not form.is_bound:
        return Attempt()
    if not form.is_valid():
        return Attempt(status=422)
    try:
        return Attempt(result=act(form.cleaned_data), is_done=True)
    except Refusal as refusal:
        return Attempt(status=refusal.status, problem=refusal.why)


@contextmanager
def refusals() -> Iterator[None]:
    """Convert the refusals of operations to Refusal, and a denial to Django's PermissionDenied."""
    try:
        yield
    except OperationDeniedError as error:
        raise PermissionDenied(told(error)) from error
    except UnseenRunError as error:
        raise Refusal(_unseen(error), 409) from error
    except RunNotFoundError as error:
        raise Http404(told(error)) from error
    except (DurableError, ValueError) as error:
        raise Refusal(_words(error), status_of(error)) from error


@contextmanager
def acting_on_runs(request: HttpRequest, reason: str, *, expected: str | None = None) -> Iterator[None]:
    """Act as the user, on runs that the user may see. `expected` is the revision of the run. Raises what `refusals`
    raises.
    """
    seen = access.seen_by(request)
    with refusals(), acting_as(access.actor_of(request), reason=reason, expected=expected, sees=seen):
        yield


@contextmanager
def acting(request: HttpRequest, given: Mapping[str, Any]) -> Iterator[None]:
    """Act as the user, for the reason in the form. Raises Refusal and what `refusals` raises."""
    as_seen = acting_as(access.actor_of(request), reason=given["reason"], expected=given["expected"] or None)
    with refusals(), as_seen:
        try:
            yield
        except (HoldError, ScheduleError, StaleLimitError, UnknownWorkflowError) as error:
            raise Refusal(_("Nothing was done: %(why)s") % {"why": told(error)}, 409) from error
        except TypeError as error:
            raise Refusal(_("Nothing was done: %(why)s") % {"why": error}, 422) from error


def status_of(error: Exception) -> int:
    """Return 409 if the state has changed in the meantime, 422 if an argument is not valid."""
    faster = (InvalidTransitionError, StalePlanError, RunConflictError)
    return 409 if isinstance(error, faster) else 422


def _words(error: Exception) -> str:
    if isinstance(error, StaleRunError | StalePlanError):
        text = _("The run has changed since this page was made, so nothing was done. Below is how it is now. (%(why)s)")
    elif isinstance(error, PayloadError):
        text = _("This cannot be recorded: %(why)s")
    else:
        text = _("Nothing was done: %(why)s")
    return text % {"why": told(error)}


def _unseen(error: UnseenRunError) -> str:
    """Explain a refused start: the user would not see the run, or a hidden run has its id or key."""
    if error.key:
        text = _('Nothing was done: an open run that you may not see has the key "%(key)s". Use another key.')
        return text % {"key": error.key}
    return _("Nothing was done: you would not see the run. Start one that you may see, with another id.")


def no_verb(name: str, known: Iterable[str]) -> str:
    """Return the answer for an address with an unknown verb."""
    return _('There is no verb "%(name)s"; there are %(verbs)s.') % {"name": name, "verbs": ", ".join(known)}


def admit(request: HttpRequest, action: str, run_id: str) -> None:
    """Raise PermissionDenied unless the user may see runs and apply the verb; the audit log records a denied change.

    Call this before looking for the run: a user who may not see runs must not learn which runs exist.
    """
    for permission in (*needed_by(action), "view_run"):
        if access.may(request, permission):
            continue
        if request.method == "POST":
            log_denied(request, action, permission, run_id)
        access.demand(request, permission)


def log_denied(request: HttpRequest, action: str, permission: str, run_id: str) -> NoReturn:
    """Record in the audit log that the user lacks the permission. Raises PermissionDenied."""
    actor, reason = access.actor_of(request), request.POST.get("reason", "")[:1_000]
    with acting_as(actor, reason=reason), audited(runtime.current(), action, run_id):
        raise OperationDeniedError(action, permission, actor.name)


def show(admin: AdminPages, request: HttpRequest, key: str, name: str) -> HttpResponse:
    """Show the confirmation page, or apply the verb."""
    verb = RUN_VERBS.get(name)
    if verb is None:
        raise Http404(no_verb(name, RUN_VERBS))
    admit(request, name, unquote(key))
    run = pages.find(request, key)
    form_class = with_fields(ActForm, verb)
    form = form_class(pages.posted(request))
    ticked = verb.ticked(pages.posted(request) or request.GET)
    location = request.GET.get("at", "") if verb.takes_location else ""

    def act(given: dict[str, Any]) -> str:
        options = {
            **ticked,
            **({"location": location} if location else {}),
            **{each: given[each] for each in form.asked},
        }
        with acting_on_runs(request, given["reason"], expected=given["expected"] or None):
            if verb.makes_run:
                return str(verb.call(run.id, as_id=given["token"], **options).id)
            verb.call(run.id, **options)
            return run.id

    tried = attempt(form, act)
    if tried.is_done:
        messages.success(request, verb.done)
        if location:
            return HttpResponseRedirect(f"{admin.url('running_step', tried.result)}?{urlencode({'at': location})}")
        return HttpResponseRedirect(admin.url("change" if run.workflow != BULK else "bulk_result", tried.result))
    if tried.problem:
        run = pages.find(request, key)
        form = form_class({**request.POST.dict(), "expected": revision(run)})
    may_edit = all(access.may(request, each) for each in ("edit_input", "start_run", "view_payload"))
    context = {
        **asking_context(admin, request, run),
        "title": _("%(verb)s: run %(run)s") % {"verb": verb.title, "run": run.id},
        "verb": verb,
        "form": form,
        "problem": tried.problem,
        "ticked": ticked,
        "options": _options(verb, run),
        "location": location,
        "children_note": starts_of_run(run.id).note
        if name == "replay"
        else verb_note(run, name, access.within(request)),
        "is_possible": name in possible_verbs(run) or name == "take_stack",
        "command": _command(verb, run.id, location, ticked),
        "edit_url": admin.url("edit_input", run.id) if name == "restart" and may_edit else "",
    }
    return admin.page(request, "act", context, status=tried.status)


def _options(verb: RunVerb, run: Run) -> list[Flag]:
    """Return the options that can now affect the run; at most one statement."""
    without = set()
    if run.started_at is None:
        without.add("rollback")
    if any(each.name == "interrupt" for each in verb.flags) and not activities_of_runs([run], pages.now())[run.id]:
        without.add("interrupt")
    return [each for each in verb.flags if each.name not in without]


def _command(verb: RunVerb, run_id: str, location: str, ticked: Mapping[str, bool]) -> str:
    word = "stack" if verb.action == "take_stack" else verb.action.replace("_", "-")
    return command(word, run_id, location=location, **ticked, **verb.placeholders)


def asking_context(admin: AdminPages, request: HttpRequest, run: Run) -> dict[str, Any]:
    """Return the run's data for every confirmation page."""
    return {
        "run": run,
        "run_url": admin.url("change", run.id),
        "expected": revision(run),
        "explanation": explain_fully(
            run,
            pages.now(),
            open_keys_of_long(run),
            within=access.within(request),
            with_payloads=access.may(request, "view_payload"),
        ),
    }
