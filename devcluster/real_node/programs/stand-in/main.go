// Stand-in takes the place of programs that tests need to run, and nothing else: whatever its arguments, it waits until
// SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
