"""What code of users does, as one hash, and whose a module is."""
