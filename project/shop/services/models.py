"""What the outside world remembers. They are models of the shop's app only so that the admin can show them."""

import uuid

from django.db import models


class Charge(models.Model):
    """Money taken from a card. `request` is what the one who asked calls it: two of the same are two charges."""

    reference = models.CharField(max_length=80, db_index=True)
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    request = models.CharField(max_length=300, blank=True, db_index=True)
    idempotency_key = models.CharField(max_length=300, unique=True, null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"{self.amount} for {self.reference}"


class Transfer(models.Model):
    """A transfer that a shop has asked for. `token` is its unguessable address at the bank.

    The bank says at `answer_to` that the money is there, which is `charge` then.
    """

    token = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    reference = models.CharField(max_length=80, db_index=True)
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    answer_to = models.TextField(editable=False)
    charge = models.OneToOneField(Charge, models.PROTECT, null=True, blank=True, related_name="transfer")
    idempotency_key = models.CharField(max_length=300, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"transfer of {self.amount} for {self.reference}"


class Refund(models.Model):
    """Money given back."""

    charge = models.ForeignKey(Charge, models.PROTECT, related_name="refunds")
    idempotency_key = models.CharField(max_length=300, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"refund of {self.charge}"


class Label(models.Model):
    """A parcel label, bought from the carrier."""

    reference = models.CharField(max_length=80, db_index=True)
    tracking = models.CharField(max_length=20, unique=True)
    idempotency_key = models.CharField(max_length=300, unique=True)
    is_void = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return self.tracking


class Mail(models.Model):
    """A message that the post has delivered."""

    to = models.EmailField()
    subject = models.CharField(max_length=120)
    body = models.TextField()
    idempotency_key = models.CharField(max_length=300, unique=True)
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"“{self.subject}” to {self.to}"


class Fault(models.Model):
    """A switch that breaks a service, for trying out what the shop does then."""

    class Service(models.TextChoices):
        BANK = "bank"
        CARRIER = "carrier"
        POST = "post"
        PICTURES = "pictures"

    service = models.CharField(max_length=8, choices=Service, unique=True)
    is_on = models.BooleanField("on", default=False)
    first_attempts = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        help_text="Fail only the first so many attempts of each step. Empty: fail all, until switched off.",
    )
    is_late = models.BooleanField(
        "late", default=False, help_text="Do what is asked, and then fail to answer. Otherwise nothing is done."
    )

    class Meta:
        app_label = "shop"
        ordering = ["service"]
        verbose_name = "fault switch"
        verbose_name_plural = "fault switches"

    def __str__(self) -> str:
        return f"{self.service} {'fails' if self.is_on else 'works'}"

    @classmethod
    def switch(cls, service: Service, *, on: bool, first_attempts: int | None = None, late: bool = False) -> None:
        """Break the service, or mend it. If `late`, it does its work and does not answer."""
        how = {"is_on": on, "first_attempts": first_attempts, "is_late": late}
        cls.objects.update_or_create(service=service, defaults=how)

    def hits(self, attempt: int) -> bool:
        """Whether the service fails for a step that is at its `attempt`, counted from 1."""
        return self.is_on and (self.first_attempts is None or attempt <= self.first_attempts)
