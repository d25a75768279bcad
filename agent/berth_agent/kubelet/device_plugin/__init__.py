"""The device plugin. It offers the node's GPUs to kubelet, and answers how a container gets them.

    Device spec ──> resources ──> one server for each resource ──> kubelet: Register, ListAndWatch
                                        |  GetPreferredAllocation, Allocate
                                        v
                                  Chooser: which devices, and whether at all ──> response: environment, mounts, CDI

Which resources there are, and what a response has, is the vendor's hand-over. `plugin_server` talks to kubelet.
`manager` and `servers` keep offers and servers in step.
"""
