"""Index expressions and scalar bodies of nests, lowered once for the kernels of every target.

    builder.py    what a target's builder gives: operations on values, whose lanes or elements are the target's affair
    indices.py    index expressions as operations on integers
    values.py     what values of a body have become; index values and conditions that stay symbolic
    body.py       operations of a body that mean the same in every kernel

`mem_to_cpu` (scalars and vectors) and `mem_to_tt` (scalars and tiles) add what a target does in its own way.
"""
