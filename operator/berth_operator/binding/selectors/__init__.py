"""Selectors that take too long for the loop, evaluated in a process of their own."""
