"""Resource pools as a node sees them: their devices, and what is left of the counters that they share."""
