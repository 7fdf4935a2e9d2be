"""Tell observers of passes and calls. Changes nothing of what it watches."""
