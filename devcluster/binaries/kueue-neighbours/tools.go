//go:build tools

// Package binaries pins JobSet and LeaderWorkerSet in the versions that Kueue requires. They are in a module of their
// own, as they need an older controller-runtime than Kueue.
package binaries

import (
	_ "sigs.k8s.io/jobset"
	_ "sigs.k8s.io/lws/cmd"
)
