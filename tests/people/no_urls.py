"""The URLs of a project that includes nothing."""

from typing import Any

urlpatterns: list[Any] = []
