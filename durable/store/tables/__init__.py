"""Rows in a database by subject, through the ORM: what SQLite does, and what is rare enough on PostgreSQL."""
