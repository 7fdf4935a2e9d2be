"""Starting runs: a new run with arguments as JSON and options, and a restart with an edited input."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from durable import operations
from durable.admin import access, action_page, pages
from durable.admin.action_page import Refusal
from durable.admin.forms import MAX_BODY, EditInputForm, MuteForm, as_token, json_editor, option_field, read_arguments
from durable.admin.pages import AdminPages
from durable.admin.text import as_id
from durable.conf import conf
from durable.core.ids import new_id
from durable.core.records import HoldKind
from durable.core.registry import BULK, UnknownWorkflowError
from durable.definitions import Workflow
from durable.inspection.humanize import shortened
from durable.inspection.payloads import EditableInput, recorded_input, shown_arguments
from durable.inspection.queues import find_hold
from durable.inspection.reading import reading
from durable.inspection.wording import command, told
from durable.inspection.workflow_code import WorkflowCode, code_of
from durable.inspection.workflows import workflow_of
from durable.models import Run
from durable.notifier import redis_clients
from durable.operations.start import arguments_of
from durable.operations.start_options import START_OPTIONS

_PLAIN: Final[Mapping[Any, tuple[type, ...]]] = {
    bool: (bool,),
    dict: (dict,),
    float: (int, float),
    int: (int,),
    list: (list,),
    str: (str,),
    NoneType: (NoneType,),
}
_LONGEST_VALUE: Final = 60  # characters of a quoted value
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def misfit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the first argument that does not fit: its name, the annotation, and the value as JSON; None if all fit.

    Arguments that the function does not take are left to `Workflow.start`.
    """
    signature = inspect.signature(function)
    try:
        hints = get_type_hints(function)
        bound = signature.bind(None, *args, **kwargs).arguments
    except Exception:  # noqa: BLE001  # an annotation is code, and may raise anything
        return None
    for name, value in bound.items():
        hint = hints.get(name, Any)
        parameter = signature.parameters[name]
        if parameter.kind not in _MANY and value is not parameter.default and not _fits(value, hint):
            return (
                name,
                inspect.formatannotation(hint),
                shortened(json.dumps(value, ensure_ascii=False), _LONGEST_VALUE),
            )
    return None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in get_args(hint))
    kind = origin or hint
    plain = _PLAIN.get(kind) if isinstance(kind, type) else None
    if plain is None:
        return True
    return isinstance(value, plain) and (bool in plain or not isinstance(value, bool))


#: The page's element with suggestions for an option.
_LISTS: Final = {"queue": "known-queues", "priority": "known-priorities"}


class StartForm(MuteForm):
    """The arguments of a new run as JSON, its id, how it starts, and a token against repeats.

    The token becomes the run's id if none is given.
    """

    arguments = forms.CharField(
        strip=False,
        max_length=MAX_BODY,
        label=_("Arguments (JSON)"),
        help_text=_('Keywords as an object, for example {"order_id": 7}; or a list of positional arguments.'),
        widget=json_editor(8),
    )
    token = forms.CharField(max_length=64, widget=forms.HiddenInput, initial=new_id)

    #: The seldom needed options of the start. The id is shown above them, and the token replaces `on_conflict`.
    options = {each.name: each for each in START_OPTIONS if each.name not in ("id", "on_conflict")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["run_id"] = option_field(next(each for each in START_OPTIONS if each.name == "id"))
        self.fields |= {name: option_field(option) for name, option in self.options.items()}
        for name, element in _LISTS.items():
            self.fields[name].widget.attrs["list"] = element

    @property
    def shown_options(self) -> list[forms.BoundField]:
        """The fields of the start's options."""
        return [self[name] for name in self.options]

    @property
    def has_options(self) -> bool:
        """Whether one of these fields is filled in."""
        return any(self[name].value() for name in self.options)

    @property
    def start_options(self) -> dict[str, Any]:
        """The given options, as arguments of `Workflow.using`."""
        return {name: self.cleaned_data[name] for name in self.options if self.cleaned_data[name] not in ("", None, {})}

    def clean_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional arguments and the keywords. Raises ValidationError."""
        return read_arguments(self.cleaned_data["arguments"])

    def clean_token(self) -> str:
        """Return the token, which becomes the id of the new run."""
        return as_token(str(self.cleaned_data["token"]))

    def clean_queue(self) -> str:
        """Return the queue. Raises ValidationError for one that the project does not have."""
        queue = str(self.cleaned_data["queue"])
        names = redis_clients.queue_names()
        if queue and conf.REDIS and queue not in names:
            raise forms.ValidationError(
                _("No worker can serve this queue: the project's queues are %(queues)s."),
                params={"queues": ", ".join(sorted(names))},
            )
        return queue

    def clean(self) -> dict[str, Any]:
        """Check each option as the start does, and the rules that involve several of them."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        for name, option in self.options.items():
            if given.get(name) not in ("", None, {}):
                try:
                    option.read(given[name])
                except (ValueError, OverflowError) as error:
                    self.add_error(name, told(error))
                    continue
                for needed, text in option.needs:
                    if given.get(needed) in ("", None) and needed not in self.errors:
                        self.add_error(needed, text)
        return given


def show(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the form for the arguments, or start a run."""
    action_page.admit(request, "start", "")
    found = workflow_of(as_id(key))
    name, workflow = found.name, found.definition
    if not isinstance(workflow, Workflow) or name == BULK:
        raise Http404(gettext('There is no workflow "%(workflow)s" that this process can start.') % {"workflow": name})
    code = code_of(workflow, may_see_payloads=access.may(request, "view_payload"))
    form = StartForm(pages.posted(request), initial={"arguments": _skeleton(code)})
    tried = action_page.attempt(form, lambda _given: _start(request, workflow, form))
    if tried.is_done:
        run_id, is_new = tried.result
        messages.success(request, gettext("It is started.") if is_new else gettext("Such a run exists; this is it."))
        return HttpResponseRedirect(admin.url("change", run_id))
    context = {
        "title": gettext("Start one: %(workflow)s") % {"workflow": name},
        "name": name,
        "code": code,
        "form": form,
        "problem": tried.problem,
        "hold": find_hold(HoldKind.WORKFLOW, name),
        "back": admin.url("workflow", name) if access.is_offered("workflow") else admin.url("changelist"),
        "queues": sorted(redis_clients.queue_names()),
        "priorities": list(conf.PRIORITIES),
        "command": command("start", name),
    }
    return admin.page(request, "start", context, status=tried.status)


def _start(request: HttpRequest, workflow: Workflow[Any, Any], form: StartForm) -> tuple[str, bool]:
    given = form.cleaned_data
    args, kwargs = given["arguments"]
    if (found := misfit(workflow.function, args, kwargs)) is not None:
        argument, expected, value = found
        told = {"argument": argument, "expected": expected, "value": value}
        raise Refusal(
            gettext('Nothing was started: "%(argument)s" is %(expected)s, and %(value)s was given.') % told, 422
        )
    run_id = given["run_id"] or given["token"]  # so that a form sent twice starts one run
    with action_page.acting_on_runs(request, given["reason"]):
        try:
            handle = workflow.using(id=run_id, **form.start_options).start(*args, **kwargs)
            return str(handle.id), bool(handle.is_new)
        except TypeError as error:  # the arguments do not fit the signature
            raise Refusal(gettext("Nothing was started: %(why)s") % {"why": error}, 422) from error


def _skeleton(code: WorkflowCode) -> str:
    """Return JSON to fill in: the keywords without a default, each null."""
    required = [each.name for each in code.parameters if each.is_required and each.kind != "positional_only"]
    return json.dumps(dict.fromkeys(required), indent=2) if required else "{}"


def show_again(admin: AdminPages, request: HttpRequest, key: str) -> HttpResponse:
    """Show the editor, or restart the run with the edited arguments."""
    for action in ("edit_input", "restart"):
        action_page.admit(request, action, unquote(key))
    if request.method == "POST" and not access.may(request, "view_payload"):
        action_page.log_denied(request, "edit_input", "view_payload", unquote(key))
    access.demand(request, "view_payload")
    run = pages.find(request, key)
    with reading():
        editable, refusal = _editable(run)
    initial = {"values": json.dumps(editable.values, indent=2, ensure_ascii=False), "token": new_id()}
    form = EditInputForm(pages.posted(request), initial=initial)
    tried = action_page.attempt(form, partial(_start_again, request, run, editable))
    if tried.is_done:
        messages.success(request, gettext("A new run with this input has begun; this is it."))
        return HttpResponseRedirect(admin.url("change", tried.result))
    context = {
        **action_page.asking_context(admin, request, run),
        "title": gettext("Start again with another input: run %(run)s") % {"run": run.id},
        "form": form,
        "problem": tried.problem,
        "refusal": refusal,
        "kept": editable.kept,
    }
    return admin.page(request, "edit_input", context, status=tried.status)


def _editable(run: Run) -> tuple[EditableInput, str]:
    """Return the editable arguments, and why none is editable ("" if some are)."""
    nothing = EditableInput(values={}, kept=())
    given = recorded_input(run)
    if given is None:
        return nothing, gettext("The input is too large to be edited here, or it cannot be read.")
    try:
        return shown_arguments(run, given, arguments_of(run.workflow, given)), ""
    except UnknownWorkflowError:
        return nothing, gettext(
            "The code here does not have the workflow %(workflow)s, so its arguments are not known."
        ) % {"workflow": run.workflow}
    except ValueError as error:
        return nothing, gettext("Nothing can be edited: %(why)s.") % {"why": error}


def _start_again(request: HttpRequest, run: Run, editable: EditableInput, given: dict[str, Any]) -> str:
    """Start the new run. Unchanged arguments do not count as changes."""
    values = given["values"]
    changes = {
        name: value for name, value in values.items() if name not in editable.values or editable.values[name] != value
    }
    with action_page.acting_on_runs(request, given["reason"]):
        return operations.restart(run.id, as_id=given["token"], changes=changes).id
