"""Equal and independent parts of a program: outline, inline, batch."""
