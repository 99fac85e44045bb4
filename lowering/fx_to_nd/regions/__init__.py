"""Higher-order operators and control flow, with graphs as operands."""
