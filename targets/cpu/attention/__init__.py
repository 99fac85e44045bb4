"""The fused attention kernel of the CPU."""
