"""What users add or overrule: FX passes, decompositions, kernels, directives, and how each enters keys of caches."""
