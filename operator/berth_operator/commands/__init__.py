"""What people run by hand, beside the operator: simulate a workload, ask whom to move, write a snapshot down."""
