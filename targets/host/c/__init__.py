"""The C entry of host programs: tensors by their addresses, and nothing of Python or torch."""
