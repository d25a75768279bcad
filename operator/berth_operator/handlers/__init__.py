"""kopf's handlers: thin, level-triggered, and the only place that imports kopf.

kopf runs in a thread and loop of its own, so that neither its work nor its end touches the scheduler's tasks. It plays
one of two roles: *standby* serves probes alone, *leading* also reconciles.
"""
