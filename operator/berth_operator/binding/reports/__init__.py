"""What users see of decisions: Events, the status of waiting pods, why bound pods are on their nodes, and metrics."""
