//go:build tools

// Package binaries pins the API server of Kubernetes 1.34, on which an installation is tested.
package binaries

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
