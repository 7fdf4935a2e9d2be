"""Schedules: their rows, their ticks, and the verbs on them.

- `rows` fills in a row before it is saved, and locks rows.
- `tick` decides what becomes of each moment that is due.
- `sync` makes the rows of schedules that the code declares.
- `verbs` is what operators call.

A schedule's row is locked before a run's.
"""
