"""`stepwell bench`: kernels, models and overhead beside eager and other compilers."""
