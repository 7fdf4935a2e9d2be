"""Execute one pass of one run: its commits, its evictions and its database connections."""
