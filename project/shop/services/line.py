"""The line to the outside world: slow where the settings say so, dead where a `Fault` says so."""

import time

from django.conf import settings

from project.shop.services.models import Fault

__all__ = ["ServiceDownError", "call"]


class ServiceDownError(Exception):
    """The service did not answer."""

    def __init__(self, service: str) -> None:
        self.service = service
        where = "on the shop's first page" if service == Fault.Service.BANK else "with its fault switch in the admin"
        super().__init__(f"the {service} does not answer; staff can repair it {where}")


def call(service: Fault.Service, attempt: int = 1) -> None:
    """Reach `service`, or raise `ServiceDownError`. `attempt` is the caller's, which is what a fault counts."""
    time.sleep(settings.SHOP["SERVICE_LATENCY"])
    fault = Fault.objects.filter(service=service).first()
    if fault and fault.hits(attempt):
        raise ServiceDownError(service)
