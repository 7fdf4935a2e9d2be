"""The shop's addresses."""

from django.conf import settings
from django.urls import path
from django.views.generic import RedirectView

from project.shop import views

app_name = "shop"

urlpatterns = [
    path("", views.Storefront.as_view(), name="storefront"),
    path("cart/", views.CartPage.as_view(), name="cart"),
    path("cart/progress/", views.CartProgress.as_view(), name="cart-progress"),
    path("cart/click/", views.CartClick.as_view(), name="click-cart"),
    path("bank/transfers/<uuid:token>/", views.TransferPage.as_view(), name="transfer"),
    path("post/", views.Post.as_view(), name="post"),
    path("bank/", views.SwitchBank.as_view(), name="switch-bank"),
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}shop/cat.svg")),
    path("orders/<uuid:token>/", views.OrderPage.as_view(), name="order"),
    path("orders/<uuid:token>/progress/", views.OrderProgress.as_view(), name="order-progress"),
    path("orders/<uuid:token>/answer/", views.Answer.as_view(), name="answer"),
    path("orders/<uuid:token>/cancel/", views.Cancel.as_view(), name="cancel"),
    path("orders/<uuid:token>/refund/", views.AskForRefund.as_view(), name="refund"),
    path("orders/<uuid:token>/hand-back/", views.HandBack.as_view(), name="hand-back"),
    path("orders/<uuid:token>/review/", views.WriteReview.as_view(), name="review"),
    path("examples/", views.Examples.as_view(), name="examples"),
    path("examples/<str:name>/start/", views.StartExample.as_view(), name="start-example"),
    path("examples/<uuid:token>/", views.ExamplePage.as_view(), name="example"),
    path("examples/<uuid:token>/progress/", views.ExampleProgress.as_view(), name="example-progress"),
    path("examples/<uuid:token>/stream/", views.ExampleStream.as_view(), name="example-stream"),
    path("examples/<uuid:token>/stop/", views.StopExample.as_view(), name="stop-example"),
]
