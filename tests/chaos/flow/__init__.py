"""Everything of flow at once under faults: compensated children, maps, keys, deadlines, and verbs on parents in every state."""
