"""How operator and agent log in to the API server."""
