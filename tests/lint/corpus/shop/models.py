"""A model."""

from django.db import models


class Order(models.Model):
    class Meta:
        app_label = "corpus"
