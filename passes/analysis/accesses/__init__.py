"""Questions about the accesses of one nest, each answered in one place: what they vary with, whether two of them meet, whether a nest may
store in the memory of what it reads."""
