"""The backend for `django.tasks`, which Django has from version 6 on."""

from durable.tasks.backend import backend_for

DurableBackend = backend_for("django.tasks", __name__)
