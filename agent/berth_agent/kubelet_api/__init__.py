"""Messages and services of kubelet's gRPC APIs for devices.

Each `.proto` has the interface's names and field numbers. `make generate` writes the Python code next to it.
"""
