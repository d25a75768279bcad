"""Reports as tables that scripts can cut, as JSON, YAML and names."""
