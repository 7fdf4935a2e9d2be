"""Renames of recorded operations: the migration operations, the rewriting of rows, and unapplied renames.

`durable.core.names.renames` defines what two names of one operation mean to a pass.
"""
