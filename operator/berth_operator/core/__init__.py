"""The decision: pure functions of the Fleet, without I/O, clock or random numbers."""
