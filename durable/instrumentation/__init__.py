"""Report passes and calls to observers, for metrics and tracing. Must not affect what it observes."""
