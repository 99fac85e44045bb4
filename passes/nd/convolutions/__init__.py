"""How a convolution is computed."""
