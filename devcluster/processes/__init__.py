"""Processes of this machine: children that never outlive their parent, control groups, running programs."""
