"""Selectors that take too long for the loop, evaluated in a separate process."""
