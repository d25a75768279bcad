"""What users configure: flags and variables, the configuration file and its schema, device plug-ins."""
