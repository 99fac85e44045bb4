"""The torch.compile backend: options, modes, compilation, compiled graphs, counters."""
