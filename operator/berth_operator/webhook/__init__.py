"""The webhook that injects where the API server serves no MutatingAdmissionPolicy: `berth-operator webhook`."""
