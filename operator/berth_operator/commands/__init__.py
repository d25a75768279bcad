"""Commands for users: simulate a workload, get advice on which pods to move, save a snapshot."""
