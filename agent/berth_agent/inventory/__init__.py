"""Where readings come from: NVML, sysfs, a fleet file, and plug-ins; and the minors of devices that have none."""
