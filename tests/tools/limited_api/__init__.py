"""An API that allows so many requests a minute, and so many at once of each tenant.

Runs call it while their workers are killed, and what it has seen is judged: `python -m tests.tools.limited_api`.
"""
