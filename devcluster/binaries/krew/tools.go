//go:build tools

// Package binaries pins the krew that tests install the plug-in of kubectl with.
package binaries

import (
	_ "sigs.k8s.io/krew/cmd/krew"
)
