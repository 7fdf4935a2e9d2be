"""The shop's pages.

Each view checks what it is given, calls one thing, and answers; anyone with an order's link may act.
"""

from contextlib import suppress
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views import View

from durable import Handle, get_run, streams
from durable.errors import InvalidTransitionError, RunNotFoundError
from project.shop import checkout
from project.shop.branches import BRANCHES, current_branch
from project.shop.examples import EXAMPLES, GUEST, start
from project.shop.forms import OrderForm, ReviewForm
from project.shop.models import Fault, Mail, Order, Review, Transfer
from project.shop.progress import Progress, progress_of_cart, progress_of_example, progress_of_order
from project.shop.services import bank

__all__ = [
    "Answer",
    "AskForRefund",
    "Cancel",
    "CartClick",
    "CartPage",
    "CartProgress",
    "ExamplePage",
    "ExampleProgress",
    "ExampleStream",
    "Examples",
    "HandBack",
    "OrderPage",
    "OrderProgress",
    "Post",
    "StartExample",
    "StopExample",
    "Storefront",
    "SwitchBank",
    "TransferPage",
    "WriteReview",
]

REMEMBERED_ORDERS = 10
NEWEST_MAILS = 20
TOO_LATE = "Too late: the order has come to its end."


class Storefront(View):
    """The shelf and the till."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show(request, OrderForm(initial=GUEST))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = OrderForm(request.POST)
        if not form.is_valid():
            return self.show(request, form, status=422)
        ordered = form.cleaned_data
        if request.POST.get("verb") == "cart":
            request.session["customer"] = {"name": ordered["name"], "email": ordered["email"]}
            request.session["cart"] = checkout.add_to_cart(_visitor(request), ordered["quantities"]).id
            return redirect("shop:cart")
        by_transfer = ordered["pay_by"] == "transfer"
        order = checkout.place_order(ordered["name"], ordered["email"], ordered["quantities"], by_transfer=by_transfer)
        request.session["orders"] = [order.pk, *request.session.get("orders", [])][:REMEMBERED_ORDERS]
        return redirect(order)

    def show(self, request: HttpRequest, form: OrderForm, status: int = 200) -> HttpResponse:
        orders = Order.objects.all()
        if not request.user.is_staff:
            orders = orders.filter(pk__in=request.session.get("orders", []))
        context = {
            "form": form,
            "branch": current_branch(),
            "branches": BRANCHES,
            "orders": orders[:REMEMBERED_ORDERS],
            "may_switch": request.user.is_staff and request.user.has_perm("shop.change_fault"),
            "is_bank_broken": Fault.objects.filter(service=Fault.Service.BANK, is_on=True).exists(),
        }
        return render(request, "shop/storefront.html", context, status=status)


class CartPage(View):
    """What the visitor has chosen, or the order that it became."""

    def get(self, request: HttpRequest) -> HttpResponse:
        run = _cart_run(request)
        progress = None if run is None else progress_of_cart(run, reverse("shop:click-cart"))
        if run is not None and run.state == "completed" and run.output is not None:
            request.session["orders"] = list(dict.fromkeys([run.output, *request.session.get("orders", [])]))
        context = {
            "progress": progress,
            "progress_url": reverse("shop:cart-progress"),
            "run_id": "" if run is None else run.id,
        }
        return render(request, "shop/cart.html", context)


class CartProgress(View):
    """The changing part of the cart's page."""

    def get(self, request: HttpRequest) -> HttpResponse:
        run = _cart_run(request)
        if run is None:
            raise Http404("There is no cart.")
        return _progress(request, progress_of_cart(run, reverse("shop:click-cart")))


class CartClick(View):
    """The buttons of the cart's page."""

    def post(self, request: HttpRequest) -> HttpResponse:
        verb = request.POST.get("verb", "")
        if verb not in {"order", "empty"}:
            return HttpResponseBadRequest("A cart is ordered or emptied.")
        if not checkout.send_to_cart(_visitor(request), verb, request.session.get("customer", GUEST)):
            messages.error(request, "Too late: this cart has come to its end.")
        return redirect("shop:cart")


class SwitchBank(View):
    """The bank's fault switch, for staff who may change it in the admin."""

    def post(self, request: HttpRequest) -> HttpResponse:
        if not (request.user.is_staff and request.user.has_perm("shop.change_fault")):
            raise PermissionDenied
        wanted = request.POST.get("bank", "")
        if wanted not in {"broken", "working"}:
            return HttpResponseBadRequest("The bank is broken or working.")
        Fault.switch(Fault.Service.BANK, on=wanted == "broken")
        return redirect("shop:storefront")


class OrderPage(View):
    """An order, whole: what was bought, and where it stands."""

    def get(self, request: HttpRequest, token: UUID) -> HttpResponse:
        orders = Order.objects.select_related("customer", "review").prefetch_related("lines__product")
        order = get_object_or_404(orders, token=token)
        context = {
            "order": order,
            "progress": progress_of_order(order),
            "progress_url": reverse("shop:order-progress", args=[token]),
            "review_form": ReviewForm(initial={"stars": 5}),
        }
        return render(request, "shop/order.html", context)


class OrderProgress(View):
    """The changing part of an order's page."""

    def get(self, request: HttpRequest, token: UUID) -> HttpResponse:
        order = get_object_or_404(Order, token=token)
        return _progress(request, progress_of_order(order))


class Answer(View):
    """The shopkeeper's yes or no."""

    def post(self, request: HttpRequest, token: UUID) -> HttpResponse:
        order = get_object_or_404(Order, token=token)
        verdict = request.POST.get("verb", "")
        if verdict not in {"approved", "rejected"}:
            return HttpResponseBadRequest("An order is approved or rejected.")
        try:
            checkout.answer(order, verdict, by=request.user.get_username() or "the shopkeeper")
        except (InvalidTransitionError, RunNotFoundError):
            messages.error(request, TOO_LATE)
        return redirect(order)


class Cancel(View):
    """The customer's change of mind."""

    def post(self, request: HttpRequest, token: UUID) -> HttpResponse:
        order = get_object_or_404(Order, token=token)
        try:
            checkout.cancel(order)
        except (InvalidTransitionError, RunNotFoundError):
            messages.error(request, TOO_LATE)
        return redirect(order)


class AskForRefund(View):
    """The customer wants the money of an order back that was sent."""

    def post(self, request: HttpRequest, token: UUID) -> HttpResponse:
        order = get_object_or_404(Order, token=token)
        if not checkout.ask_for_refund(order):
            messages.error(request, "Only an order that was sent is given back.")
        return redirect(order)


class HandBack(View):
    """The customer gives the parcel to the carrier."""

    def post(self, request: HttpRequest, token: UUID) -> HttpResponse:
        order = get_object_or_404(Order, token=token)
        if order.status != Order.Status.SENT:
            return HttpResponseBadRequest("There is no parcel to hand back.")
        checkout.hand_back(order)
        messages.success(request, "The carrier says that the parcel is back.")
        return redirect(order)


class TransferPage(View):
    """The bank's page of a transfer: what the customer is asked for, and the buttons that tell the shop."""

    def get(self, request: HttpRequest, token: UUID) -> HttpResponse:
        transfer = get_object_or_404(Transfer.objects.select_related("charge"), token=token)
        order = Order.objects.filter(pk=transfer.reference.removeprefix("order-")).first()
        return render(request, "shop/transfer.html", {"transfer": transfer, "order": order})

    def post(self, request: HttpRequest, token: UUID) -> HttpResponse:
        get_object_or_404(Transfer, token=token)
        is_forged = request.POST.get("verb") == "forge"
        status = bank.deliver(bank.forge(token) if is_forged else bank.take_transfer(token))
        if status == HTTPStatus.OK:
            messages.success(request, "The shop has been told, and answers 200.")
        elif status == HTTPStatus.GONE:
            bank.return_transfer(token)
            messages.error(request, "The shop answers 410: it waits no longer. The money is yours again.")
        elif status == HTTPStatus.FORBIDDEN:
            messages.error(request, "The shop answers 403: the signature is not the bank's. Nothing has happened.")
        else:
            messages.error(request, f"The shop answers {status or 'nothing'}. Tell it again in a moment.")
        return redirect("shop:transfer", token=token)


class Post(View):
    """The newest mails, for staff who may see them in the admin: a mail's link is for its receiver alone."""

    def get(self, request: HttpRequest) -> HttpResponse:
        if not (request.user.is_staff and request.user.has_perm("shop.view_mail")):
            raise PermissionDenied
        return render(request, "shop/post.html", {"mails": Mail.objects.order_by("-pk")[:NEWEST_MAILS]})


class WriteReview(View):
    """A customer's opinion. One for each order."""

    def post(self, request: HttpRequest, token: UUID) -> HttpResponse:
        order = get_object_or_404(Order, token=token)
        form = ReviewForm(request.POST, instance=Review(order=order))
        if Review.objects.filter(order=order).exists():
            messages.error(request, "This order has a review already.")
        elif form.is_valid():
            form.save()
            messages.success(request, "Thank you. A mail that says so is under way.")
        else:
            messages.error(request, "A review has 1 to 5 stars and at most 300 characters.")
        return redirect(order)


class Examples(View):
    """All workflows and the rules they keep."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return render(request, "shop/examples.html", {"examples": EXAMPLES.values()})


class StartExample(View):
    """Run an example."""

    def post(self, _request: HttpRequest, name: str) -> HttpResponse:
        example = EXAMPLES.get(name)
        if example is None or example.arguments is None:
            raise Http404("No such example, or not one that is started by hand.")
        token = uuid4()
        start(example, _example_id(token))
        return redirect("shop:example", token=token)


class ExamplePage(View):
    """The run of an example."""

    def get(self, request: HttpRequest, token: UUID) -> HttpResponse:
        run = _example_run(token)
        context: dict[str, Any] = {
            "run_id": run.id,
            "example": EXAMPLES[run.workflow.removeprefix("shop.")],
            "progress": progress_of_example(run, _stop_url(token)),
            "progress_url": reverse("shop:example-progress", args=[token]),
            "stream_url": reverse("shop:example-stream", args=[token]),
        }
        return render(request, "shop/example.html", context)


class ExampleProgress(View):
    """The changing part of an example's page."""

    def get(self, request: HttpRequest, token: UUID) -> HttpResponse:
        return _progress(request, progress_of_example(_example_run(token), _stop_url(token)))


class ExampleStream(View):
    """What the example's step emits, as it comes."""

    def get(self, request: HttpRequest, token: UUID) -> HttpResponseBase:
        run = _example_run(token)
        stream = EXAMPLES[run.workflow.removeprefix("shop.")].stream
        if not stream:
            raise Http404("No step of this example emits anything.")
        return streams.response(request, run.id, stream)


class StopExample(View):
    """The message "stop", for the examples that go on until it comes."""

    def post(self, _request: HttpRequest, token: UUID) -> HttpResponse:
        # A run that has ended needs no stop.
        with suppress(InvalidTransitionError):
            _example_run(token).send("stop", id="stop")
        return redirect("shop:example", token=token)


def _progress(request: HttpRequest, progress: Progress) -> HttpResponse:
    """The fragment; 204 if the page that asks shows it already."""
    if request.GET.get("version") == progress.version:
        return HttpResponse(status=204)
    response = render(request, "shop/progress.html", {"progress": progress})
    response["X-Version"] = progress.version
    response["Cache-Control"] = "no-store"
    return response


def _visitor(request: HttpRequest) -> str:
    """Who has the cart: a random name that the session keeps."""
    visitor: str = request.session.setdefault("visitor", uuid4().hex)
    return visitor


def _cart_run(request: HttpRequest) -> Handle | None:
    """The run of the visitor's newest cart."""
    try:
        return get_run(request.session["cart"])
    except (KeyError, RunNotFoundError):
        return None


def _example_id(token: UUID) -> str:
    return f"example-{token}"


def _example_run(token: UUID) -> Handle:
    try:
        return get_run(_example_id(token))
    except RunNotFoundError as error:
        raise Http404(str(error)) from error


def _stop_url(token: UUID) -> str:
    return reverse("shop:stop-example", args=[token])
