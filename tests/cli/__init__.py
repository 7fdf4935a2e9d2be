"""The command line, through Django's own way to call it, and through pipes and terminals."""
