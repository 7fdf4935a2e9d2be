"""The history stream: what changes in a run's history, as it changes.

`following` reads what is new, `events` writes it as server-sent events or as JSON, `serving` keeps connections open.
"""
