"""What all dialects stand on: quick creation of operations, arguments, names, 8-bit floats, special functions, the check of schedules."""
