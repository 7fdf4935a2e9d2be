"""Delays of a worker before it tries again what an outage has prevented."""

from typing import Final

# Seconds until the next try while the database or Redis is unreachable. A second late is what due runs may be anyway
# (MAX_WAIT of the Scheduler), and a server that restarts is not disturbed by a try a second from each process.
RETRY: Final = 1.0
