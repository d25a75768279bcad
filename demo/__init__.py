"""An end-to-end run of Berth, shown and audited: `python -m demo`, or `make demo`.

It runs a real control plane, the operator, two agents that simulate the nodes' cards, and pods of `manifests/examples`.
`__main__` runs the steps, `installation` owns the processes, `show` prints, and `audit` checks the result; it shares no
code with what it checks.
"""
