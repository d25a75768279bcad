//go:build tools

// Package binaries pins the Helm that tests install the chart with.
package binaries

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
