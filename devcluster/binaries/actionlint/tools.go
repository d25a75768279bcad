//go:build tools

// Package binaries pins the actionlint that checks the workflows of this repository.
package binaries

import (
	_ "github.com/rhysd/actionlint/cmd/actionlint"
)
