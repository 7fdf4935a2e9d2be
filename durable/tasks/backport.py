"""The backend for `django-tasks`, the backport of Django's tasks for earlier versions: `durable-django[tasks]`."""

from durable.tasks.backend import backend_for

DurableBackend = backend_for("django_tasks", __name__)
