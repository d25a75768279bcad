//go:build tools

// Package binaries pins the Prometheus that tests scrape metrics with.
package binaries

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
