"""Find out which pod kubelet is admitting. kubelet's calls name no pod, so its admission is mirrored here.

`pods`, `units`, `snapshot`, `choice` and `mirror` are pure. `admission` asks kubelet and the API server. `watch`
follows the node's pods, and `checkpoint` is the file.
"""
