"""The shop as a Django app; connects its signal receivers."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Label `shop`."""

    name = "project.shop"
    label = "shop"
    verbose_name = "Nine Lives"

    def ready(self) -> None:
        """Connect the receivers, which is what importing them does."""
        from project.shop import receivers  # noqa: F401
