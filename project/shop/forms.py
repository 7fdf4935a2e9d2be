"""What visitors type in, checked."""

from typing import TYPE_CHECKING, Any

from django import forms

from project.shop.models import Product, Review

__all__ = ["OrderForm", "RefundForm", "ReviewForm"]

MOST_OF_ONE = 20

if TYPE_CHECKING:
    _ReviewModelForm = forms.ModelForm[Review]
else:  # at run time Django's class takes no parameter
    _ReviewModelForm = forms.ModelForm


class OrderForm(forms.Form):
    """A name, an address, and a quantity for each product on the shelf."""

    name = forms.CharField(max_length=80, widget=forms.TextInput(attrs={"autocomplete": "name"}))
    email = forms.EmailField(widget=forms.EmailInput(attrs={"autocomplete": "email"}))
    pay_by = forms.ChoiceField(label="Pay by", choices=[("card", "card"), ("transfer", "transfer")], required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.products = list(Product.objects.all())
        for product in self.products:
            self.fields[product.slug] = forms.IntegerField(
                label=f"How many of {product.name}", min_value=0, max_value=MOST_OF_ONE, required=False, initial=0
            )

    @property
    def shelf(self) -> list[tuple[Product, forms.BoundField]]:
        """Each product with its field."""
        return [(product, self[product.slug]) for product in self.products]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        cleaned["quantities"] = {
            product: cleaned[product.slug] for product in self.products if cleaned.get(product.slug)
        }
        if not cleaned["quantities"] and not self.errors:
            raise forms.ValidationError("Choose at least one thing. The cat insists.", code="empty")
        return cleaned


class RefundForm(forms.Form):
    """What a colleague decides about a refund. The run that asks records the form by its name."""

    decision = forms.ChoiceField(choices=[("yes", "Give the money back"), ("no", "Refuse")], widget=forms.RadioSelect())
    words = forms.CharField(label="A word to the customer", max_length=200, required=False)


class ReviewForm(_ReviewModelForm):
    """Stars and a few words."""

    class Meta:
        model = Review
        fields = ["stars", "text"]
        labels = {"stars": "Stars, 1 to 5", "text": "A few words"}
