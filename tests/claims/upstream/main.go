// Package main runs upstream's allocator for the judge: `rows VARIANT` prints the tables' rows and what the allocator
// does with them, `run` reads scenarios, one JSON object a line, and prints its results.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
	"k8s.io/dynamic-resource-allocation/structured/internal/allocatortesting"
	"k8s.io/dynamic-resource-allocation/structured/internal/incubating"
	"k8s.io/dynamic-resource-allocation/structured/internal/stable"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
)

// mostCalls ends a search by its work instead of by kube-scheduler's time, so that it ends alike everywhere. A scenario
// may name another number.
const mostCalls = 4000

// bounded is a context that ends after some questions; the allocator asks once for each device that it looks for.
type bounded struct {
	context.Context
	calls, most int
}

func (b *bounded) Err() error {
	b.calls++
	if b.calls > b.most {
		return context.DeadlineExceeded
	}
	return nil
}

type held struct {
	Driver   string                                           `json:"driver"`
	Pool     string                                           `json:"pool"`
	Device   string                                           `json:"device"`
	ShareID  *apitypes.UID                                    `json:"shareID,omitempty"`
	Capacity map[resourceapi.QualifiedName]*resource.Quantity `json:"capacity,omitempty"`
	Dangling bool                                             `json:"capacityOnly,omitempty"`
}

type scenario struct {
	Name     string                       `json:"name,omitempty"`
	Features []string                     `json:"features"`
	Node     *v1.Node                     `json:"node"`
	Classes  []*resourceapi.DeviceClass   `json:"classes"`
	Slices   []*resourceapi.ResourceSlice `json:"slices"`
	Claims   []*resourceapi.ResourceClaim `json:"claims"`
	Held     []held                       `json:"held"`
	Calls    int                          `json:"calls,omitempty"`
}

type outcome struct {
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error,omitempty"`
	OneNode bool                           `json:"oneNode,omitempty"`
	Late    bool                           `json:"late,omitempty"` // Whether it was ended by mostCalls.
}

type row struct {
	Scenario scenario `json:"scenario"`
	Outcome  outcome  `json:"outcome"`
	Broken   string   `json:"broken,omitempty"` // What the table says against the outcome.
	Lossy    bool     `json:"lossy,omitempty"`  // Whether the scenario cannot be written as JSON.
}

var variants = map[string]struct {
	supported internal.Features
	construct allocatortesting.Constructor
}{
	"stable": {stable.SupportedFeatures, func(ctx context.Context, features internal.Features, state internal.AllocatedState,
		classes internal.DeviceClassLister, slices []*resourceapi.ResourceSlice, cache *cel.Cache) (internal.Allocator, error) {
		return stable.NewAllocator(ctx, features, state.AllocatedDevices, classes, slices, cache)
	}},
	"incubating": {incubating.SupportedFeatures, func(ctx context.Context, features internal.Features, state internal.AllocatedState,
		classes internal.DeviceClassLister, slices []*resourceapi.ResourceSlice, cache *cel.Cache) (internal.Allocator, error) {
		return incubating.NewAllocator(ctx, features, state, classes, slices, cache)
	}},
}

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	if os.Args[1] == "rows" {
		printRows(json.NewEncoder(out), os.Args[2])
		return
	}
	run(json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(out))
}

func printRows(out *json.Encoder, variant string) {
	for _, each := range allocatortesting.Rows(variants[variant].supported, variant == "incubating") {
		results, err := allocate(variant, each.Features, each.State, each.Classes, each.Slices, each.Node, each.Claims, mostCalls)
		printed := row{Scenario: asScenario(each), Outcome: asOutcome(results, err)}
		printed.Lossy = isLossy(printed.Scenario)
		if err := each.Holds(results, err); err != nil {
			printed.Broken = err.Error()
		}
		must(out.Encode(printed))
	}
}

// isLossy tells quantities such as 10^21, which are written as 1.
func isLossy(given scenario) bool {
	text, err := json.Marshal(given)
	must(err)
	var read scenario
	must(json.Unmarshal(text, &read))
	return !equality.Semantic.DeepEqual(given.Slices, read.Slices) || !equality.Semantic.DeepEqual(given.Claims, read.Claims)
}

func run(in *json.Decoder, out *json.Encoder) {
	for in.More() {
		var one scenario
		one.Calls = mostCalls
		must(in.Decode(&one))
		results, err := allocate("incubating", features(one.Features), state(one.Held), one.Classes, one.Slices, one.Node, one.Claims, one.Calls)
		must(out.Encode(asOutcome(results, err)))
	}
}

func allocate(variant string, features internal.Features, state internal.AllocatedState, classes []*resourceapi.DeviceClass,
	given []*resourceapi.ResourceSlice, node *v1.Node, claims []*resourceapi.ResourceClaim, calls int) (results []resourceapi.AllocationResult, err error) {
	defer func() {
		if got := recover(); got != nil {
			err = fmt.Errorf("panic: %v", got)
		}
	}()
	ctx := &bounded{Context: context.Background(), most: calls}
	// Copies: 0.36.3 changes quantities of its input in place.
	copied := make([]*resourceapi.ResourceSlice, len(given))
	for i := range given {
		copied[i] = given[i].DeepCopy()
	}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	allocator, err := variants[variant].construct(ctx, features, state, allocatortesting.NewLister(classes), copied, cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, node, claims)
}

func asOutcome(results []resourceapi.AllocationResult, err error) outcome {
	if err != nil {
		late := strings.HasPrefix(err.Error(), "filter operation aborted")
		return outcome{Error: err.Error(), OneNode: errors.Is(err, internal.ErrFailedAllocationOnNode), Late: late}
	}
	for _, result := range results {
		for i := range result.Devices.Results {
			if id := result.Devices.Results[i].ShareID; id != nil {
				fixed := apitypes.UID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
				result.Devices.Results[i].ShareID = &fixed
			}
		}
	}
	return outcome{Results: results}
}

func asScenario(each allocatortesting.Row) scenario {
	return scenario{
		Name: each.Name, Features: enabled(each.Features), Node: each.Node, Classes: each.Classes,
		Slices: each.Slices, Claims: each.Claims, Held: asHeld(each.State),
	}
}

func asHeld(state internal.AllocatedState) []held {
	all := []held{}
	for id := range state.AllocatedDevices {
		all = append(all, held{Driver: id.Driver.String(), Pool: id.Pool.String(), Device: id.Device.String()})
	}
	for id := range state.AllocatedSharedDeviceIDs {
		share := apitypes.UID(id.ShareID.String())
		all = append(all, held{Driver: id.Driver.String(), Pool: id.Pool.String(), Device: id.Device.String(), ShareID: &share})
	}
	for id, capacity := range state.AggregatedCapacity {
		all = append(all, held{Driver: id.Driver.String(), Pool: id.Pool.String(), Device: id.Device.String(), Capacity: capacity, Dangling: true})
	}
	slices.SortFunc(all, func(a, b held) int {
		if fmt.Sprint(a) < fmt.Sprint(b) {
			return -1
		}
		return 1
	})
	return all
}

func state(all []held) internal.AllocatedState {
	state := internal.AllocatedState{
		AllocatedDevices:         sets.New[internal.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[internal.SharedDeviceID](),
		AggregatedCapacity:       internal.NewConsumedCapacityCollection(),
	}
	for _, each := range all {
		id := internal.MakeDeviceID(each.Driver, each.Pool, each.Device)
		if each.ShareID == nil && !each.Dangling {
			state.AllocatedDevices.Insert(id)
			continue
		}
		if each.ShareID != nil {
			state.AllocatedSharedDeviceIDs.Insert(schedulerapi.MakeSharedDeviceID(id, each.ShareID))
		}
		if each.Capacity != nil || each.Dangling {
			state.AggregatedCapacity.Insert(internal.DeviceConsumedCapacity{DeviceID: id, ConsumedCapacity: each.Capacity})
		}
	}
	return state
}

// features sets the fields with these names; those that this version lacks are left out.
func features(names []string) internal.Features {
	var all internal.Features
	for _, name := range names {
		if field := reflect.ValueOf(&all).Elem().FieldByName(name); field.IsValid() {
			field.SetBool(true)
		}
	}
	return all
}

func enabled(all internal.Features) []string {
	names := []string{}
	value := reflect.ValueOf(all)
	for i := range value.NumField() {
		if value.Field(i).Bool() {
			names = append(names, value.Type().Field(i).Name)
		}
	}
	return names
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
