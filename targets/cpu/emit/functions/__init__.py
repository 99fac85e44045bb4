"""Elementary and special functions as polynomials and tables."""
