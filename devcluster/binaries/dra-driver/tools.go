//go:build tools

// Package binaries pins the DRA driver that a real node of the development cluster can run.
package binaries

import _ "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
