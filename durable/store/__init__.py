"""Where runs are kept: the portable store, the PostgreSQL one and the in-memory one, under one contract."""
