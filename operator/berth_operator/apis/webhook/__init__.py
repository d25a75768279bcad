"""The admission webhook, `berth-operator webhook`: validates, and mutates where the API server has no policy for it."""
