package container

import (
	"os"
	"strings"
)

// OwnEnvironment is the environment of the runtime's own helper processes: nothing of the user's, but Go's settings for
// finding mistakes (GODEBUG, GORACE, GOTRACEBACK) where they are set.
func OwnEnvironment(more ...string) []string {
	environment := append([]string{}, more...)
	for _, variable := range os.Environ() {
		for _, name := range []string{"GODEBUG=", "GORACE=", "GOTRACEBACK="} {
			if strings.HasPrefix(variable, name) {
				environment = append(environment, variable)
			}
		}
	}
	return environment
}
