"""The tests. `tests.plugin` starts PostgreSQL and Redis for the session; `tests.conftest` hands them out."""
