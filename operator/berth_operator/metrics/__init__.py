"""What Prometheus sees of the operator."""
