"""The main job, shown and checked: `python -m demo`, or `make demo`.

A real control plane, one agent on a C library in the place of NVML, one agent that plays the other nodes, the
operator, and the pods of `manifests/examples`. `__main__` tells the story, `world` holds the processes, `show` prints,
and `audit` checks the result, without a line of code in common with what it checks.
"""
