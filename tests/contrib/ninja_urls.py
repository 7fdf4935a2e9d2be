"""The addresses of a project with an API of django-ninja, beside durable's REST interface."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver, include, path
from ninja import NinjaAPI
from ninja.security import HttpBearer

from durable.contrib.ninja import router


class Named(HttpBearer):
    """A token that is a user's name."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return User.objects.filter(username=token).first()


api = NinjaAPI(title="the shop's", urls_namespace="shop")
api.add_router("/durable", router())
tokens = NinjaAPI(title="the shop's, with tokens", urls_namespace="tokens")
tokens.add_router("/durable", router(auth=Named()))

urlpatterns: list[URLPattern | URLResolver] = [
    path("api/", include("durable.api.urls")),
    path("ninja/", api.urls),
    path("tokens/", tokens.urls),
]
