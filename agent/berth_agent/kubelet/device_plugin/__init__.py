"""The device plugin. It offers the node's GPUs to kubelet as `nvidia.com/*`, and answers how a container gets them.

    Device spec ──> resources ──> one server for each resource ──> kubelet: Register, ListAndWatch
                                        |  GetPreferredAllocation, Allocate
                                        v
                                  Chooser: which devices, and whether at all ──> response: environment, mounts, CDI

Options, resources, preferences and responses are plain functions of their arguments. `plugin_server` talks to kubelet.
`manager` and `servers` keep offers and servers in step.
"""
