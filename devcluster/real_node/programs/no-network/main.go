// No-network is the CNI plugin of a real node: a pod gets an address to show and no interface but its loopback.
// So nothing is left on the machine, and no kernel module or firewall is asked for.
package main

import (
	"encoding/json"
	"os"
)

// The address is one of those that are set aside for documentation: nothing answers there.
const (
	version = "1.0.0"
	address = "203.0.113.1/32"
)

type object = map[string]any

func main() {
	answer := object{"cniVersion": version}
	switch os.Getenv("CNI_COMMAND") {
	case "ADD":
		answer["interfaces"] = []object{{"name": os.Getenv("CNI_IFNAME"), "sandbox": os.Getenv("CNI_NETNS")}}
		answer["ips"] = []object{{"address": address, "interface": 0}}
	case "VERSION":
		answer["supportedVersions"] = []string{version}
	default:
		// DEL, CHECK, GC and STATUS are answered by ending well: there is nothing to undo or to look at.
		return
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		os.Exit(1)
	}
}
