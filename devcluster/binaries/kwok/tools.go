//go:build tools

// Package binaries pins the kwok controller that plays nodes without a kubelet.
package binaries

import _ "sigs.k8s.io/kwok/cmd/kwok"
