"""Workflows that a saved row starts: a new customer is welcomed, a review is thanked for.

A receiver runs inside the transaction of the save. The run starts if, and only if, that transaction commits.
"""

from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver

from project.shop.models import Customer, Review
from project.shop.workflows import thank, welcome

__all__ = ["thank_for_review", "welcome_new_customer"]


@receiver(post_save, sender=Customer)
def welcome_new_customer(instance: Customer, created: bool, raw: bool, **_: Any) -> None:
    """Start the mails to a customer who has just registered; not for rows loaded from a fixture."""
    if created and not raw:
        welcome.using(id=f"welcome-{instance.pk}").start(instance.name, instance.email)


@receiver(post_save, sender=Review)
def thank_for_review(instance: Review, created: bool, raw: bool, **_: Any) -> None:
    """Thank for a new review."""
    if created and not raw:
        event = {"email": instance.order.customer.email, "stars": str(instance.stars)}
        thank.using(id=f"thank-{instance.pk}", about=instance.order).start(event)
