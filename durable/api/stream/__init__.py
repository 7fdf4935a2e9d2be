"""The history stream: the changes of a run's history, as they happen.

`changes` reads the changes, `events` writes them as server-sent events or as JSON, and `broadcaster` keeps connections
open.
"""
