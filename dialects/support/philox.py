"""The numbers of Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3), for GPUs and CPUs."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
"""What two of the four words are multiplied by in each round."""

KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""What is added to the words of the key from round to round."""

ROUNDS = 10

SEED_RANGE = (-(1 << 63), (1 << 63) - 1)
"""The range that seeds are drawn from, without its end."""
