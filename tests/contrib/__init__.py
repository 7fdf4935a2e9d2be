"""The parts for other packages, with the packages themselves."""
