//go:build tools

// Package binaries pins the controller of RayClusters, RayJobs and RayServices.
package binaries

import _ "github.com/ray-project/kuberay/ray-operator"
