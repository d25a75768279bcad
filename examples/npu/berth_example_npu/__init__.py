"""NPUs for Berth: a complete example of a device plug-in."""
