"""Convert manifests of other systems to Berth: what is read, what each workload becomes, and how it is written.

`workloads` and `edits` are pure. `running` reads files and writes the answers.
"""
