"""Which pod kubelet is admitting: it names none when it asks, so its admission is mirrored here.

`pods`, `units`, `picture`, `choice` and `mirror` are pure; `watch`, `checkpoint` and `chooser` talk to the world.
"""
