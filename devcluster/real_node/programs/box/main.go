// Box is the one program in the images of a real node. Its arguments say what it does, one after the other:
//
//	env         print the environment
//	list DIR    print the names in a folder
//	exit N      end with that status
//	wait        stand until SIGTERM
//
// After the last one it waits, so that without arguments it is a sandbox's pause.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"syscall"
)

func main() {
	// Asked for first: a signal that comes while the words are done ends the waiting at once.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	words := os.Args[1:]
	next := func() string {
		if len(words) == 0 {
			fail("a word is missing at the end of %q", os.Args[1:])
		}
		word := words[0]
		words = words[1:]
		return word
	}
	for len(words) > 0 {
		switch word := next(); word {
		case "env":
			printEnvironment()
		case "list":
			printNames(next())
		case "exit":
			exit(next())
		case "wait":
			<-ended
			return
		default:
			fail("%q is none of env, list, exit and wait", word)
		}
	}
	<-ended
}

func printEnvironment() {
	lines := os.Environ()
	sort.Strings(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
}

func printNames(folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		fail("%v", err)
	}
	for _, entry := range entries {
		fmt.Println(entry.Name())
	}
}

func exit(text string) {
	status, err := strconv.Atoi(text)
	if err != nil {
		fail("%q is no exit status", text)
	}
	os.Exit(status)
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "box: "+format+"\n", values...)
	os.Exit(2)
}
