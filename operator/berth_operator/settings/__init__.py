"""What users set: flags and variables, the configuration file and its schema, device plug-ins."""
