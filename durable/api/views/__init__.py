"""The endpoints. Each view validates, calls one operation or reads rows, and answers."""
