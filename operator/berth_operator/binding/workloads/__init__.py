"""The AdmissionCheck for workloads of Kueue: its decisions, the places that it promises, and its writes."""
