"""The sources of readings: NVML, sysfs, a fleet file and plug-ins. Also the minors of devices that have none."""
