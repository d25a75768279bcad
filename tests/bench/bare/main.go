// Command bare binds each pod of a scheduler name to the next node and decides nothing: its rate is what the API server
// can do. As Berth does, it writes the Scheduled Events after the Bindings.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	workers = 64
	// quiet is how long no pod must have come before Events are written.
	quiet = 500 * time.Millisecond
)

type meta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

type object struct {
	Metadata meta `json:"metadata"`
}

type list struct {
	Metadata meta     `json:"metadata"`
	Items    []object `json:"items"`
}

type client struct {
	server, token string
	http          http.Client
}

func main() {
	server := flag.String("server", "", "URL of the API server")
	authority := flag.String("authority", "", "file of its certificate authority")
	token := flag.String("token-file", "", "file of a ServiceAccount's token")
	scheduler := flag.String("scheduler-name", "", "of the pods")
	flag.Parse()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read(*authority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	c := client{server: *server, token: strings.TrimSpace(string(read(*token))), http: http.Client{Transport: transport}}
	pods := make(chan meta, 1<<16)
	go c.follow(pods, "/api/v1/pods?fieldSelector=spec.nodeName=,spec.schedulerName="+*scheduler)
	c.bind(pods, c.nodes())
}

func read(path string) []byte {
	text, err := os.ReadFile(path)
	check(err)
	return text
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// call returns the body of a response, which the caller closes.
func (c *client) call(method, path string, body any) io.ReadCloser {
	text, err := json.Marshal(body)
	check(err)
	request, err := http.NewRequest(method, c.server+path, bytes.NewReader(text))
	check(err)
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	check(err)
	if response.StatusCode >= 300 {
		text, _ := io.ReadAll(response.Body)
		log.Fatalf("%s %s: %s", method, path, text)
	}
	return response.Body
}

func (c *client) nodes() []string {
	var nodes list
	body := c.call("GET", "/api/v1/nodes", nil)
	defer body.Close()
	check(json.NewDecoder(body).Decode(&nodes))
	names := make([]string, len(nodes.Items))
	for number, node := range nodes.Items {
		names[number] = node.Metadata.Name
	}
	return names
}

// follow sends each new pod once. The API server ends the watch of a client that was paused.
func (c *client) follow(pods chan<- meta, path string) {
	seen := map[string]bool{}
	send := func(pod meta) {
		if !seen[pod.UID] {
			seen[pod.UID] = true
			pods <- pod
		}
	}
	for {
		var listed list
		body := c.call("GET", path, nil)
		check(json.NewDecoder(body).Decode(&listed))
		body.Close()
		for _, pod := range listed.Items {
			send(pod.Metadata)
		}
		c.watch(send, path+"&watch=true&resourceVersion="+listed.Metadata.ResourceVersion)
	}
}

// watch sends each pod that is added until the watch ends.
func (c *client) watch(send func(meta), path string) {
	body := c.call("GET", path, nil)
	defer body.Close()
	events := json.NewDecoder(body)
	for {
		var event struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		if events.Decode(&event) != nil {
			return
		}
		if event.Type == "ADDED" {
			send(event.Object.Metadata)
		}
	}
}

// bind writes the Binding of each pod, and the Events whenever no pod came for a while.
func (c *client) bind(pods <-chan meta, nodes []string) {
	var bound []meta
	next := 0
	for {
		var group sync.WaitGroup
		limit := make(chan struct{}, workers)
		for waiting := true; waiting; {
			select {
			case pod := <-pods:
				node := nodes[next%len(nodes)]
				next++
				limit <- struct{}{}
				group.Go(func() {
					c.post(pod, "pods/"+pod.Name+"/binding", binding(pod, node))
					<-limit
				})
				bound = append(bound, pod)
			case <-time.After(quiet):
				waiting = false
			}
		}
		group.Wait()
		for _, pod := range bound {
			limit <- struct{}{}
			group.Go(func() {
				c.post(pod, "events", scheduled(pod))
				<-limit
			})
		}
		group.Wait()
		bound = nil
	}
}

func (c *client) post(pod meta, path string, body any) {
	response := c.call("POST", fmt.Sprintf("/api/v1/namespaces/%s/%s", pod.Namespace, path), body)
	_, err := io.Copy(io.Discard, response)
	check(err)
	response.Close()
}

func binding(pod meta, node string) any {
	return map[string]any{
		"apiVersion": "v1",
		"kind":       "Binding",
		"metadata":   map[string]any{"name": pod.Name, "annotations": map[string]string{"bench.berth.dev/allocation": pod.UID}},
		"target":     map[string]string{"kind": "Node", "name": node},
	}
}

func scheduled(pod meta) any {
	return map[string]any{
		"apiVersion":     "v1",
		"kind":           "Event",
		"metadata":       meta{Name: pod.Name + ".scheduled", Namespace: pod.Namespace},
		"involvedObject": map[string]string{"kind": "Pod", "namespace": pod.Namespace, "name": pod.Name, "uid": pod.UID},
		"reason":         "Scheduled",
		"type":           "Normal",
	}
}
