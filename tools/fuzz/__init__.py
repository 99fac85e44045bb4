"""Random programs, and random changes of their IR, against eager and the interpreters: `stepwell fuzz`."""
