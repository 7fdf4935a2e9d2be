"""Partitions: the tables of runs and entries in parts, by the hash of the run's id, on PostgreSQL.

- `layout` makes tables of the same columns, indexes and rights in another number of partitions, and puts them in the
  place of those that are there. It has the operation of the first migrations, which does so with empty tables.
- `copying` does so with tables that have rows, while workers write to them.

Runs and their entries are read and written by the same statements and functions, whatever the number. docs/design/
partitions.md says what is partitioned by which column, and what that costs.
"""
