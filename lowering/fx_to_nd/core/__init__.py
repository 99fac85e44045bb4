"""The importer itself: nodes, metadata, types, devices, signature and registry of rules."""
