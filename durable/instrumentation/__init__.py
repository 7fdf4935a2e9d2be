"""Tell observers of passes and calls, for metrics and tracing. Must not change what it observes."""
