"""Names that have changed: of workflows, operations, queues, functions and classes."""
