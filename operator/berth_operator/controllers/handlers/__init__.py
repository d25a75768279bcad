"""kopf's handlers: thin, level-triggered, and the only place that imports kopf.

kopf runs in a thread and loop of its own, so that neither its work nor its end affects the scheduler's tasks. It serves
probes and watches Devices from the start of the process; its handlers write only while this replica leads.
"""
