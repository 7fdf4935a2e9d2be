"""System checks: of the settings, of the database, and of the workflows' code. Each module registers its own."""
