"""Products of integers with scales: what quantised models compute."""
