"""kopf's handlers: thin, level-triggered, and the only place that imports kopf.

kopf runs in a thread and loop of its own, so that neither its work nor its end touches the scheduler's tasks. It serves
probes and watches Devices from the start of the process; what it sees is acted on only while this replica leads.
"""
