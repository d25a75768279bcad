"""GPUs of AMD: their folder in sysfs, health, measurements, and how containers get them. No library is loaded."""
