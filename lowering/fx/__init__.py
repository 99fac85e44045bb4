"""FX graphs before they are imported: rewrites by time (`pre_grad`, `joint`, `post_grad`), decompositions, the bridge from sympy."""
