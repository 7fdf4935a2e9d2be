"""The post: delivers mails."""

from project.shop.services import line
from project.shop.services.models import Fault, Mail

__all__ = ["send"]


def send(to: str, subject: str, body: str, *, key: str, attempt: int = 1) -> Mail:
    """Deliver a mail; the same `key` delivers nothing new."""
    mail = {"to": to, "subject": subject, "body": body}
    with line.to(Fault.Service.POST, attempt):
        return Mail.objects.get_or_create(idempotency_key=key, defaults=mail)[0]
