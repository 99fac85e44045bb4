"""Facts on the IR, without profit: accesses, symbols, dependences, lifetimes, reduction kinds, schedules."""
