// Command judge evaluates selectors with Kubernetes' own implementation, k8s.io/dynamic-resource-allocation/cel.
//
// It reads one JSON object from each line, {"expression": string, "devices": [device]}, where a device is
// {"driver": string} and the fields of a device in a ResourceSlice, and writes one for each:
// {"compile": error or "", "results": ["true" | "false" | error]}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type device struct {
	Driver             string `json:"driver"`
	resourceapi.Device `json:",inline"`
}

type question struct {
	Expression string   `json:"expression"`
	Devices    []device `json:"devices"`
}

type answer struct {
	Compile string   `json:"compile"`
	Results []string `json:"results"`
}

func main() {
	// The features of 1.37 that are on.
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			log.Fatalf("%v in %s", err, lines.Text())
		}
		// As the allocator compiles them: for stored expressions, without an estimate of their cost.
		compiled := compiler.CompileCELExpression(asked.Expression, cel.Options{DisableCostEstimation: true})
		given := answer{Results: []string{}}
		if compiled.Error != nil {
			given.Compile = compiled.Error.Detail
		} else {
			for _, each := range asked.Devices {
				given.Results = append(given.Results, matches(compiled, each))
			}
		}
		if err := out.Encode(given); err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func matches(compiled cel.CompilationResult, each device) string {
	result, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   each.Driver,
		AllowMultipleAllocations: each.AllowMultipleAllocations,
		Attributes:               each.Attributes,
		Capacity:                 each.Capacity,
	})
	if err != nil {
		return "error: " + err.Error()
	}
	return strconv.FormatBool(result)
}
