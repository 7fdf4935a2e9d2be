"""The REST interface: the verbs and the histories, for programs.

Mount it with `path("api/", include("durable.api.urls"))` under any prefix. It needs the extra `durable-django[api]`.
Views hold no logic: they authenticate, validate, call one operation and answer. The host's settings of Django REST
Framework decide only how users are authenticated: permissions, renderers, parsers, pagination and errors are the
interface's own.
"""

from django.core.exceptions import ImproperlyConfigured

try:
    import drf_spectacular
    import rest_framework
except ImportError as error:
    raise ImproperlyConfigured(
        f'durable.api needs {error.name}: install "durable-django[api]", or do not include durable.api.urls'
    ) from error

__all__: list[str] = []
del drf_spectacular, rest_framework
