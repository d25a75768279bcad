"""What the agent can be configured with: its own settings, and the options of NVIDIA's device plugin."""
