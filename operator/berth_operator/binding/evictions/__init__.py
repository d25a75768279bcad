"""Pods that are deleted to make room for others: preemption and defragmentation."""
