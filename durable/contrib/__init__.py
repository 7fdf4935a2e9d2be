"""Parts for other packages and services, each with an extra if it needs one.

Nothing of durable imports them: a project names what it uses.

- `durable.contrib.carry`: the language, the time zone and the schema of django-tenants, to travel with runs.
- `durable.contrib.pull_request`: what `durable replay-check` has found, as a comment on a pull request.
- `durable.contrib.sentry`: check-ins of schedules and the causes of failures, for Sentry.
- `durable.contrib.debug_toolbar`: the verbs that a request has called, for django-debug-toolbar.
- `durable.contrib.metrics`: counters of workflow code that a replay does not count again.
- `durable.contrib.span_names`: attributes of other conventions on the spans of OpenTelemetry.
- `durable.contrib.ninja`: runs, lists and verbs as operations of an API of django-ninja.
- `durable.contrib.health_check`: database, Redis, workers and due runs, for django-health-check.
"""
