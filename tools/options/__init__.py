"""Options of torch.compile: declared once each, with type, check, role in caches, environment variable and document."""
