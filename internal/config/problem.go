package config

import (
	"fmt"
	"math"
	"strings"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	// Where it was written: file:line, a variable or a flag; empty when nothing set it.
	Where string
	// Key that it is about; empty when it concerns the source as a whole.
	Key string
	// What is wrong. Never holds a secret.
	What string
	// Next is what to do about it.
	Next string
}

// String gives the problem on one line, without the next step.
func (p Problem) String() string {
	var b strings.Builder
	for _, part := range []string{p.Where, p.Key} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	b.WriteString(p.What)
	return b.String()
}

// Error is a configuration that cannot be used, with all that is wrong with it.
type Error struct {
	// Problems holds at least one.
	Problems []Problem
}

// Error gives one line for a single problem, else a list with the next step of each.
func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return "configuration: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration: %d problems", len(e.Problems))
	for _, p := range e.Problems {
		fmt.Fprintf(&b, "\n  %s (%s)", p, p.Next)
	}
	return b.String()
}

// Next is what to do: the step of a single problem, or where to look when there are several.
func (e *Error) Next() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Next
	}
	return "correct these, then check with: cdc-relay validate --config FILE"
}

// Nearest returns the known name that was most likely meant, or "" when none is close. A name that
// only lacks the sections before it is close, too.
func Nearest(name string, known []string) string {
	if best, off := nearest(name, known); off <= max(2, len(name)/3) {
		return best
	}
	for _, k := range known {
		if strings.HasSuffix(k, "."+name) {
			return k
		}
	}
	return ""
}

// nearest returns the known name that is the fewest letters off, and how many.
func nearest(name string, known []string) (best string, off int) {
	off = math.MaxInt
	for _, k := range known {
		if d := distance(name, k); d < off {
			best, off = k, d
		}
	}
	return best, off
}

// distance counts the letters to insert, remove or change to get from a to b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
