"""The admission webhook, `berth-operator webhook`: validates, and injects where the API server has no policy for it."""
