"""What kubelet speaks: the messages and services of its two interfaces for devices.

Each `.proto` has the interface's names and field numbers; `make generate` writes the Python beside it.
"""
