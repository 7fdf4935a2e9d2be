"""The line to the outside world: slow where the settings say so, dead or deaf where a `Fault` says so."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from project.shop.services.models import Fault

__all__ = ["NoAnswerError", "ServiceDownError", "to"]


class ServiceDownError(Exception):
    """The service could not be reached: it has done nothing."""

    def __init__(self, service: str) -> None:
        self.service = service
        where = "on the shop's first page" if service == Fault.Service.BANK else "with its fault switch in the admin"
        super().__init__(f"the {service} does not answer; staff can repair it {where}")


class NoAnswerError(Exception):
    """The service was reached, and no answer came: nobody knows what it has done."""

    def __init__(self, service: str) -> None:
        self.service = service
        super().__init__(f"no answer came from the {service}, which may have done what it was asked")


@contextmanager
def to(service: Fault.Service, attempt: int = 1) -> Iterator[None]:
    """Reach `service`, which works inside the block. `attempt` is the caller's, which is what a fault counts.

    Raises ServiceDownError before the block, or NoAnswerError after it.
    """
    time.sleep(settings.SHOP["SERVICE_LATENCY"])
    fault = Fault.objects.filter(service=service).first()
    is_hit = fault is not None and fault.hits(attempt)
    if fault and is_hit and not fault.is_late:
        raise ServiceDownError(service)
    yield
    if is_hit:
        raise NoAnswerError(service)
