"""Pages of the admin as the tests of status read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.admin.pages import text_of, url


def log_in(client: Client, *permissions: str) -> None:
    """Log a staff user in who has these permissions of durable's, or all of them."""
    user = User.objects.create_user("-".join(permissions) or "ada", is_staff=True)
    found = Permission.objects.filter(content_type__app_label="durable")
    user.user_permissions.set(found.filter(codename__in=permissions) if permissions else found)
    client.force_login(user)


@pytest.fixture
def admin_page(db: None, client: Client) -> Callable[..., str]:
    """The text of a page about runs: `admin_page("change", "run-1", part="values")`."""
    log_in(client)
    return lambda name, *args, **query: text_of(client.get(url(name, *args), query))
