"""Compilations that go on when a part fails."""
