"""The Helm chart, and what writes its generated files."""
