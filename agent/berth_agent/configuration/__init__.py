"""The agent's configuration: its own settings, and the options of NVIDIA's device plugin."""
