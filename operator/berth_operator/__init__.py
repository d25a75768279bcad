"""The operator: decides which pod gets which devices, writes it, and keeps Devices and Nodes current."""
