"""mem -> host: the launch program of a graph, and the destinations that its calls of ATen write to."""
