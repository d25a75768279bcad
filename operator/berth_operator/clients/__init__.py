"""What only the operator asks of the API server: pods, Events, the election of a leader, the fence."""
