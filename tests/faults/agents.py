"""The settings of `tests.faults.persistent` under an agent that watches the database: the one that AGENT names."""

import os

from tests.support.proxies import wrap_connections

match os.environ["AGENT"]:
    case "ddtrace":  # as `ddtrace-run` does
        import ddtrace.auto  # noqa: F401
    case "elasticapm":
        import elasticapm

        elasticapm.instrument()
    case _:
        wrap_connections()

from tests.faults.persistent import *  # noqa: F403  # a settings module extends another one in this way
