"""Rows that are weighed by what a program computes of scores, without the scores in memory (CPU)."""
