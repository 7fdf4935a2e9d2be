"""Everything of flow at once under faults.

Compensated children, maps, keys, deadlines, and verbs on parents in every state.
"""
