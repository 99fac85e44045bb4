"""Random programs, and random changes of their IR, against eager and the interpreters: `python -m stepwell.tools.fuzz`."""
