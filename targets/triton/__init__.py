"""The Triton target: `tt` modules as Triton's text, and everything that Triton makes of it, on machines with or without
a GPU.  Triton itself is imported when something is compiled."""
