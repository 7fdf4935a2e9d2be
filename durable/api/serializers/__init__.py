"""What requests may hold and what answers hold: the shapes of which the OpenAPI document is made."""
