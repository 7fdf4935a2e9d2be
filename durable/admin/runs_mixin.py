"""What a project's own `ModelAdmin` gets: a column with the newest open run about each object, and its runs beside it.

A project imports this where it registers its models, so it imports nothing that only pages need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin.options import InlineModelAdmin
from django.db.models import Model
from django.forms.formsets import BaseFormSet, formset_factory
from django.forms.utils import ErrorList
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from durable.models import RunSubject

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Inline = InlineModelAdmin[RunSubject, Any]
    _FormSet = BaseFormSet[forms.Form]
else:  # at run time Django's classes take no parameters
    _ModelAdmin, _Inline, _FormSet = object, InlineModelAdmin, BaseFormSet

_KEPT = "_durable_run"  # attribute of an object of a list page


class RunsMixin(_ModelAdmin):
    """The runs about a model's objects in its admin: `class OrderAdmin(RunsMixin, ModelAdmin)`.

    The list has a column, `durable_run`, with the sentence of the newest open run about each object: one query for the
    page. It comes last, unless `list_display` names it. The page of an object has a section with its runs, open ones
    first: what they do or wait for, their last steps, and the buttons that answer them, which lead to durable's own
    pages. Both are for users with `durable.view_run`, and show the runs that `DURABLE["ADMIN_RUNS"]` allows; a button
    needs the permission of its verb.
    """

    #: How many runs the page of an object shows.
    runs_shown = 10

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, with that of the runs for a user who may see them."""
        names = list(super().get_list_display(request))
        if not _may_see(request):
            return [name for name in names if name != "durable_run"]
        return names if "durable_run" in names else [*names, "durable_run"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, whose objects have been given their newest open runs."""
        found = super().get_changelist_instance(request)
        if "durable_run" in found.list_display:
            from durable.admin.subjects import open_runs  # pages need it, and no start of a process

            objects = list(found.result_list)
            for each, cell in zip(objects, open_runs(self, request, objects), strict=True):
                setattr(each, _KEPT, cell)
        return found

    @admin.display(description=_("Run"))
    def durable_run(self, obj: Model) -> SafeString | str | None:
        """Return the sentence of the object's newest open run, as a link; None without one."""
        found: SafeString | None = getattr(obj, _KEPT, None)
        return found

    def get_inline_instances(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the inlines, with the section of the runs for a user who may see them."""
        found = list(super().get_inline_instances(request, obj))
        if obj is not None and obj.pk is not None and _may_see(request):
            section = _RunsInline(self.model, self.admin_site)
            section.runs_shown = self.runs_shown
            found.append(section)
        return found


def _may_see(request: HttpRequest) -> bool:
    from durable.admin import access  # pages need it, and no start of a process

    return access.may(request, "view_run")


class _RunsOfObject(_FormSet):
    """A formset without forms, whose section has the runs of an object. It takes nothing of what is posted."""

    request: HttpRequest
    model_admin: Any
    new_objects: Any = ()
    changed_objects: Any = ()
    deleted_objects: Any = ()

    def __init__(self, *_: Any, instance: Model | None = None, prefix: str | None = None, **__: Any) -> None:
        super().__init__(prefix=prefix)
        self.instance = instance

    @classmethod
    def get_default_prefix(cls) -> str:
        return "durable-runs"

    def is_valid(self) -> bool:
        return True

    @property
    def errors(self) -> Any:
        return []

    def non_form_errors(self) -> ErrorList:
        return ErrorList()

    def get_queryset(self) -> Any:
        return []

    def save(self, commit: bool = True) -> list[Any]:  # Django's signature
        return []

    @cached_property
    def section(self) -> SafeString | str:
        """The runs, as HTML; read when the page is rendered, after the transaction of the request."""
        from durable.admin.subjects import section_of  # pages need it, and no start of a process

        return "" if self.instance is None else section_of(self.model_admin, self.request, self.instance)


class _RunsInline(_Inline):
    """The section with the runs of an object."""

    model = RunSubject
    template = "durable/admin/_object_runs.html"
    verbose_name = _("run")
    verbose_name_plural = _("Runs")
    can_delete = False
    extra = max_num = 0
    runs_shown = RunsMixin.runs_shown

    @property
    def media(self) -> forms.Media:
        return forms.Media(css={"all": ["durable/durable.css"]})

    def get_formset(self, request: HttpRequest, obj: Model | None = None, **_: Any) -> Any:
        class Runs(_RunsOfObject):
            pass

        Runs.request, Runs.model_admin = request, self
        return formset_factory(forms.Form, formset=Runs, extra=0)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return []

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return True  # the mixin has asked

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
