"""What stores compute in Python, written once: rules of rows, and of tables behind protocols.

The stores in memory and for SQLite have these tables, and the two databases share what is rare. What PostgreSQL does
in functions of its own is tried against the same tests.
"""
