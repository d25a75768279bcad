"""The operator: decides which pod gets which devices, binds it, and keeps the status of Devices and Nodes current."""
