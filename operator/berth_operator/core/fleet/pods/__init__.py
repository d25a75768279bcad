"""What placed pods are to other pods: columns, counts and indexes that every charge keeps current."""
