// Package allocatortesting gets this file beside the tables: it records their rows instead of running them.
package allocatortesting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
)

// Constructor makes an allocator.
type Constructor = func(context.Context, Features, AllocatedState, DeviceClassLister, []*resourceapi.ResourceSlice, *cel.Cache) (Allocator, error)

// Row is a row of a table.
type Row struct {
	Name     string
	Features Features
	Claims   []*resourceapi.ResourceClaim
	Classes  []*resourceapi.DeviceClass
	Slices   []*resourceapi.ResourceSlice
	Node     *v1.Node
	State    AllocatedState
	Holds    func(results []resourceapi.AllocationResult, err error) error
}

// Lister lists classes.
type Lister = informerLister[resourceapi.DeviceClass]

// NewLister returns a lister of classes.
func NewLister(classes []*resourceapi.DeviceClass) Lister { return Lister{objs: classes} }

var errRecorded = errors.New("recorded")
var recorded []Row

// Rows returns the rows of the tables that need no other than these features; one table is for allocators that sort pools.
func Rows(supported Features, sorts bool) []Row {
	recorded = nil
	record(func() { TestAllocator(nil, supported, nil) })
	if sorts {
		record(func() { TestLexicographicalAllocator(nil, supported, nil) })
	}
	slices.SortFunc(recorded, func(a, b Row) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return recorded
}

func record(table func()) {
	defer func() {
		if got := recover(); got != errRecorded {
			panic(got)
		}
	}()
	table()
	panic("the table was not recorded")
}

// RunTestAllocator records the rows; the original has another name here.
func RunTestAllocator(_ *testing.T, supported Features, _ Constructor, table map[string]AllocatorTestCase) {
	for name, row := range table {
		if supported.Set().IsSuperset(row.features.Set()) {
			recorded = append(recorded, asRow(name, row))
		}
	}
	panic(errRecorded)
}

func asRow(name string, row AllocatorTestCase) Row {
	at := row.node
	if at == nil {
		at = node(node1, region1)
	}
	return Row{
		Name: name, Features: row.features, Claims: unwrap(row.claimsToAllocate...), Classes: row.classes,
		Slices: row.slices, Node: at,
		State: AllocatedState{
			AllocatedDevices:         sets.New(row.allocatedDevices...),
			AllocatedSharedDeviceIDs: row.allocatedSharedDeviceIDs,
			AggregatedCapacity:       row.allocatedCapacityDevices,
		},
		Holds: func(results []resourceapi.AllocationResult, err error) error { return holds(row, results, err) },
	}
}

func holds(row AllocatorTestCase, results []resourceapi.AllocationResult, err error) error {
	for _, result := range results {
		for i := range result.Devices.Results {
			if result.Devices.Results[i].ShareID != nil {
				result.Devices.Results[i].ShareID = &fixedShareID
			}
		}
	}
	expected := row.expectError
	if expected == nil {
		expected = gomega.Not(gomega.HaveOccurred())
	}
	if ok, matchErr := expected.Match(err); matchErr != nil || !ok {
		return fmt.Errorf("error %v, %w", err, matchErr)
	}
	if ok, matchErr := gomega.ConsistOf(row.expectResults...).Match(results); matchErr != nil || !ok {
		return fmt.Errorf("results differ, %w", matchErr)
	}
	return nil
}
