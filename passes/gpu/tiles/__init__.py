"""How a nest becomes blocks of a GPU kernel: facts of the nest, candidates, rules by family."""
