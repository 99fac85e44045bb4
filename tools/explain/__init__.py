"""`stepwell.explain`: what was decided for a graph, what each step costs, and why."""
