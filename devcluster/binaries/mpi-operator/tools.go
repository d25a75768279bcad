//go:build tools

// Package binaries pins the controller of MPIJobs.
package binaries

import _ "github.com/kubeflow/mpi-operator/cmd/mpi-operator"
