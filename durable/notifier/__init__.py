"""Tell workers and timers that something is due. Owns what goes to Redis; never decides what is due: the database does."""
