"""Renames of recorded operations: the operations of migrations, the rewriting of the rows, and what is not applied yet.

What two names of one operation mean to a pass is in `durable.core.names.renames`.
"""
