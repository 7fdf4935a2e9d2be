"""Schedules: their rows, their ticks, and the verbs on them.

- `rows` fills in a row before it is saved, and locks rows.
- `tick` decides what each due moment starts.
- `sync` writes the rows of schedules that the code declares.
- `verbs` has the operators' verbs.

A schedule's row is locked before a run's.
"""
