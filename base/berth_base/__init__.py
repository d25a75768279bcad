"""Code that every program of Berth runs at its start: read settings, configure the log, print the version."""
