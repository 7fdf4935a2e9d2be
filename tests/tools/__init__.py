"""Programs for developers that use what the tests have."""
