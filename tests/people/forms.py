"""Forms that the tests of questions ask with."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.models import Group


class RefundForm(forms.Form):
    """A refund that may be refused."""

    approved = forms.BooleanField(required=False, initial=True)
    amount = forms.DecimalField(max_digits=8, decimal_places=2, min_value=Decimal("0.01"))
    reason = forms.CharField(required=False, widget=forms.Textarea)


class GroupForm(forms.Form):
    """A choice of rows."""

    group = forms.ModelChoiceField(Group.objects.all())
    others = forms.ModelMultipleChoiceField(Group.objects.all(), required=False)


class OwnRefusal(forms.Form):
    """A form that says itself what a refusal is."""

    mark = forms.IntegerField()

    def refuses(self) -> Any:
        return self.cleaned_data["mark"] > 4


class Careless(forms.Form):
    """A form whose `clean` asks for a field that may have been refused."""

    amount = forms.DecimalField()

    def clean(self) -> None:
        if self.cleaned_data["amount"] > 100:
            raise forms.ValidationError("At most 100.")


class CarelessRefusal(forms.Form):
    """A form that fails where it says what a refusal is."""

    mark = forms.IntegerField()

    def refuses(self) -> bool:
        return bool(10 / self.cleaned_data["mark"] > 4)


def _unreachable() -> Any:
    raise RuntimeError("no answer from https://bank.example/?key=secret")


class Unshowable(forms.Form):
    """A form whose choices fail where they are read."""

    account = forms.ChoiceField(choices=_unreachable)


class Unmakeable(forms.Form):
    """A form whose constructor reads its choices, and fails."""

    account = forms.ChoiceField()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["account"].choices = _unreachable()  # type: ignore[attr-defined]  # a field of choices


class WithFile(forms.Form):
    """A form that nobody can answer by: answers have no files."""

    receipt = forms.FileField()


class OfShop(forms.Form):
    """A form that only its project can make."""

    mark = forms.IntegerField()

    def __init__(self, shop: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shop = shop
