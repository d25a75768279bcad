"""The sources of readings: sysfs and plug-ins. Also the minors of devices that have none."""
