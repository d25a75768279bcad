"""Placed pods as other pods see them: columns, counts and indexes that every charge updates."""
