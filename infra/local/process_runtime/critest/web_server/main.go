// Web_server stands for the web servers of critest's images: `nginx PORT` answers every request with a page. It is
// installed under the name of the server that it stands for.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	name := filepath.Base(os.Args[0])
	// As nginx does; the suite reads it.
	if err := os.WriteFile("/var/run/"+name+".pid", []byte(fmt.Sprintln(os.Getpid())), 0o644); err != nil {
		log.Fatal(err)
	}
	log.Printf("a stand-in for %s listens on port %s", name, os.Args[1])
	log.Fatal(http.ListenAndServe(":"+os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "<h1>It works!</h1><p>This is a stand-in for", name)
	})))
}
