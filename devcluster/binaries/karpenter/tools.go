//go:build tools

// Package binaries pins Karpenter with its provider for kwok's nodes.
package binaries

import _ "sigs.k8s.io/karpenter/kwok"
