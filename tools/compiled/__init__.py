"""What a compilation makes and counts: the compiled graph, counters, the bytes that its kernels move."""
