"""What a release consists of, and what writes it: `make release`, docs/release.md."""
