"""`make demo`: a trained model searches the standard library."""
