"""A map of 10,000 children whose workers are killed all the time.

The parent of another map is cancelled while it makes its children.
"""
