"""Models as objects and headers for C programs."""
