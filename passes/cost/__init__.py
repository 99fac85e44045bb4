"""What anything costs: the machine, footprints, nests, calls of ATen."""
