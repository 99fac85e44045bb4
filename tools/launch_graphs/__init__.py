"""Launch graphs (CUDA graphs) of compiled programs."""
