"""What is wrong with an installation. Pure functions of what could be read. They need no leader."""
