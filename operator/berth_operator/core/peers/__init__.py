"""Pods among pods: what they want of each other, and where the others are."""
