"""How much time and memory claims may take, and in whose turn."""
