// Command child passes two points three times and says each time that it has.
package main

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/crash"
)

func main() {
	for i := range 3 {
		crash.At("other")
		crash.At("here")
		fmt.Println("passed", i)
	}
}
