"""Rewrites of the joint graph: what the forward graph saves for the backward graph, and in which layout."""
