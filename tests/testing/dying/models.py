from django.db import models


class Payment(models.Model):
    order = models.IntegerField()
    key = models.CharField(max_length=80, null=True, unique=True)  # noqa: DJ001  # several rows have none

    objects: models.Manager["Payment"] = models.Manager()

    def __str__(self) -> str:
        return f"payment of {self.order}"


class Item(models.Model):
    stock = models.IntegerField(default=10)
    is_paid = models.BooleanField(default=False)

    objects: models.Manager["Item"] = models.Manager()

    def __str__(self) -> str:
        return f"{self.stock} in stock"
