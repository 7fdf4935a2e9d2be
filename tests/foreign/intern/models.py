"""Users with UUIDs, who have an address and no name; and a thing of the project's own."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models


class Members(BaseUserManager["Member"]):
    """Makes members."""

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> Member:
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> Member:
        member = self.model(email=email, **fields)
        member.set_password(password)
        member.save(using=self._db)
        return member


class Member(AbstractBaseUser, PermissionsMixin):
    """A user of the project."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(unique=True)
    is_staff = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)

    objects: ClassVar[Members] = Members()

    USERNAME_FIELD = "email"

    class Meta:
        app_label = "intern"


class Race(models.Model):
    """What the project is about."""

    name = models.CharField(max_length=100)
    metres = models.IntegerField()

    objects: ClassVar[models.Manager[Race]] = models.Manager()

    class Meta:
        app_label = "intern"

    def __str__(self) -> str:
        return self.name
