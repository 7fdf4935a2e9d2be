"""The REST interface: the verbs and the histories, for machines.

Mount it with `path("api/", include("durable.api.urls"))` under any prefix. It needs the extra `durable[api]`. Views hold
no logic: they check who asks, validate, call one operation and answer. What the host set for Django REST Framework
decides nothing here but who somebody is: permissions, renderers, parsers, pagination and errors are the interface's own.
"""

from django.core.exceptions import ImproperlyConfigured

try:
    import drf_spectacular
    import rest_framework
except ImportError as error:
    raise ImproperlyConfigured(
        f'durable.api needs {error.name}: install "durable[api]", or do not include durable.api.urls'
    ) from error

__all__: list[str] = []
del drf_spectacular, rest_framework
