"""The tools: opt-tool, the torch.compile backend, the demo.  Each is imported by itself."""
