"""The privileged part of MIG instances on demand: a process of its own that makes and destroys partitions.

A partition is a GPU instance with one compute instance that has all of it. The process serves a few calls on a socket
that only the agent may use. It destroys what it made itself, and nothing else: a caller names a partition by the key
under which it was made, never by the ids of an instance. Decision 40 describes the right that the process needs.
"""
