"""kopf's handlers. They are thin and level-triggered, and only this folder imports kopf.

kopf runs in its own thread and loop, so that neither its work nor its end affects the scheduler's tasks. It serves
probes and watches Devices from the start of the process. Its handlers write only while this replica leads.
"""
