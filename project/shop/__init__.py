"""Nine Lives, a small shop for cats: a Django app that uses `durable` as any app would."""
