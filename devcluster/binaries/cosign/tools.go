//go:build tools

// Package binaries pins the cosign that signs releases.
package binaries

import (
	_ "github.com/sigstore/cosign/v3/cmd/cosign"
)
