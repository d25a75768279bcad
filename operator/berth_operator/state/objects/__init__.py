"""Objects of the API server as values: parsed, bounded and checked."""
