//go:build tools

// Package binaries pins Kueue, which keeps quotas of namespaces by queues.
package binaries

import _ "sigs.k8s.io/kueue/cmd/kueue"
