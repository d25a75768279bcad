"""The operator's clients of the API server: pods, Events, leader election and the fence."""
