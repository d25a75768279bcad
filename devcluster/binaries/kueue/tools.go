//go:build tools

// Package binaries pins Kueue, which keeps quotas of namespaces by queues, and the controllers whose workloads it holds.
// They have the versions that Kueue was made with.
package binaries

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "sigs.k8s.io/jobset"
	_ "sigs.k8s.io/kueue/cmd/kueue"
	_ "sigs.k8s.io/lws/cmd"
)
