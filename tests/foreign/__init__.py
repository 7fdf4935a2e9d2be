"""durable in projects that are not like its own: other settings, other databases, other packages beside it."""
