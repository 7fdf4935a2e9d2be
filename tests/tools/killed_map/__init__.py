"""A map of 10,000 children whose workers are killed all the time, and one whose parent is cancelled while it makes them."""
