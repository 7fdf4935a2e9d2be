"""Saving and deleting views of the list: addresses that are posted to."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext as _

from durable.admin import access, action_page, sight
from durable.admin.base import AdminPages
from durable.admin.filter_form import FilterForm, query_of
from durable.inspection.actions import list_views
from durable.inspection.database import reading
from durable.operations.saved_views import delete_view, save_view


class _ViewForm(forms.Form):
    name = forms.CharField(max_length=80)
    query = forms.CharField(required=False, max_length=4_001)
    shared = forms.BooleanField(required=False)


def save(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Save the posted address under the posted name, and show it."""
    access.demand(request, "view_run")
    if request.method != "POST":
        return HttpResponseRedirect(admin.url("changelist"))
    form = _ViewForm(request.POST)
    query = request.POST.get("query", "").removeprefix("?")
    address = f"{admin.url('changelist')}?{query}"
    with reading():
        is_valid = form.is_valid() and FilterForm(QueryDict(query)).is_valid()
    if not is_valid:
        messages.error(
            request,
            _("Nothing was saved: a view needs a name of at most 80 characters, and a filter without a mistake."),
        )
        return HttpResponseRedirect(address)
    given = form.cleaned_data
    if given["shared"] and sight.is_limited():
        messages.error(
            request, _("Nothing was saved: where users see some runs only, a view is for the user alone who saves it.")
        )
        return HttpResponseRedirect(address)
    if given["shared"] and not access.may(request, "share_savedview"):
        action_page.log_denied(request, "share", "share_savedview", "")
    kept = query_of(QueryDict(query)).removeprefix("?")  # of the first page
    try:
        with action_page.refusals():
            save_view(access.actor_of(request), given["name"], kept, is_shared=given["shared"])
    except action_page.Refusal as refusal:
        messages.error(request, refusal.why)
    else:
        messages.success(request, _("The view “%(name)s” is saved.") % {"name": given["name"]})
    return HttpResponseRedirect(f"{admin.url('changelist')}?{kept}")


def delete(admin: AdminPages, request: HttpRequest, pk: int) -> HttpResponse:
    """Delete the view."""
    access.demand(request, "view_run")
    if request.method == "POST":
        if sight.is_limited() and not _is_own(request, pk):
            raise Http404(_("There is no such view: it may have been deleted."))
        try:
            with action_page.refusals():
                delete_view(access.actor_of(request), pk)
        except action_page.Refusal as refusal:
            raise Http404(refusal.why) from refusal
        messages.success(request, _("The view is deleted."))
    return HttpResponseRedirect(admin.url("changelist"))


def _is_own(request: HttpRequest, pk: int) -> bool:
    return any(each.pk == pk for each in list_views(str(request.user.pk), with_shared=False))
