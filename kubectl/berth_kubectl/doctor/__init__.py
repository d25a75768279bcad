"""What is wrong with an installation: pure functions over what could be read, which need no leader."""
