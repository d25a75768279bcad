"""What the operator writes back: Device.status, node sums and node labels."""
