"""durable's jobs show in django-rq's own admin pages like any other job."""

from __future__ import annotations

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from durable.notifier import notify

pytestmark = pytest.mark.django_db


def test_the_bell_of_a_queue_is_a_job_that_the_pages_show(client: Client, redis_connection: redis.Redis) -> None:
    client.force_login(User.objects.create_superuser("operator"))
    notify.notify("default")
    overview = client.get(reverse("admin:django_rq_home"), follow=True)
    assert overview.status_code == 200
    assert "default" in overview.content.decode()
    jobs = client.get(reverse("admin:django_rq_jobs", args=[0]))
    assert jobs.status_code == 200
    assert "durable.jobs.work" in jobs.content.decode()
