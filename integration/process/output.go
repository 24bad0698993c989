package process

import (
	"bytes"
	"os"
	"sync"
)

// Output keeps what a child prints. Its zero value is empty; its methods may be called from any goroutine.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to it.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is all so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Environ is what a child may see of ours: none of the variables that would configure the relay.
func Environ() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if value, set := os.LookupEnv(name); set {
			env = append(env, name+"="+value)
		}
	}
	return env
}
