"""Functions of terms for blocks of scores in the cache, and tables of the blocks in which they hide all."""
