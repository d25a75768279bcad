//go:build tools

// Package binaries pins the runc that a real node runs.
package binaries

import _ "github.com/opencontainers/runc"
