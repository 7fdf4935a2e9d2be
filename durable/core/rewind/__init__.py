"""Steps back in a history: a recovery from a failure, and a replay from a chosen place."""
