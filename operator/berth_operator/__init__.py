"""The operator. It decides which pod gets which devices, binds the pod, and updates the status of Devices and Nodes."""
