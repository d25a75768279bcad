"""Find out which pod kubelet is admitting. kubelet's calls name no pod, so its admission is mirrored here.

`pods`, `units`, `snapshot`, `choice` and `mirror` are pure. `watch`, `checkpoint` and `admission` do I/O.
"""
