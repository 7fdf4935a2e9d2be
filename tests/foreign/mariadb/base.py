"""Django's backend of SQLite under another vendor's name: nothing is asked of it but what it is."""

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    """Says that it is MariaDB."""

    vendor = "mysql"
    display_name = "MariaDB"
