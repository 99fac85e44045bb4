"""Weights that are computed from products, where the products that they weigh are summed up: no weight is stored."""
