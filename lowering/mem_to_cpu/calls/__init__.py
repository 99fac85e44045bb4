"""Library calls that generated functions answer."""
