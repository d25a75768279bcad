"""Commands that users run by hand: simulate a workload, get advice on which pods to move, save a snapshot."""
