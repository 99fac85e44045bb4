"""The page of the explorer."""
