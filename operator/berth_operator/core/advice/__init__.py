"""Answers for people: simulations, defragmentation, and reports of what is free."""
