//go:build tools

// Package binaries pins Kueue, which keeps quotas of namespaces by queues, and Kubeflow's trainer in the version that
// Kueue requires.
package binaries

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "sigs.k8s.io/kueue/cmd/kueue"
)
