"""A rewrite as two functions: a norm that a program spells out becomes one that multiplies by the inverse root, in float64 sums.

Load it in a program with ``import rms_norm`` before a compiled model is first called, or in opt-tool with
``--load-module rms_norm.py``.
"""

import torch

import stepwell


def norm(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True))


def inverse_root(x):
    """Divide by the root mean square, summed in double precision."""
    return x * torch.rsqrt((x.double() * x).mean(-1, keepdim=True)).to(x.dtype)


def check(match):
    return match["x"].dtype == torch.float32


stepwell.register_pass("nd", stepwell.replace(norm, inverse_root, check=check))
