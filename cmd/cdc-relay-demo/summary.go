package main

import (
	"fmt"
	"math"
)

// summary prints the outcome.
func (s *screen) summary(r result) {
	fmt.Fprintf(s.out, "\n%s  %s\n\n", s.paint(bold, "Summary"), "the outbox table compared with what the consumer has read")
	rate := thousands(int64(math.Round(float64(r.committed) / r.worked.Seconds())))
	s.count("committed", r.committed, "rows of public.outbox, "+rate+" a second", true)
	s.count("delivered", r.delivered, "of these rows", true)
	s.count("missing", r.missing, "committed and never delivered", r.missing == 0)
	s.count("duplicate", r.duplicate, "further copies; allowed, delivery is at-least-once", true)
	s.count("out of order", r.outOfOrder, "within one order", r.outOfOrder == 0)
	s.count("rolled back", int(r.rolledBack), "transactions; none of their events may arrive", true)
	s.count("stray", r.stray, "records without a committed row", r.stray == 0)
	fmt.Fprintf(s.out, "  %-13s p50 %s   p99 %s   max %s, from COMMIT to consumer\n",
		"latency", short(r.p50), short(r.p99), short(r.max))
	if r.kills > 0 {
		s.count("kills", int(r.kills), "of the relay with SIGKILL, and starts after them", true)
	}
	for _, example := range r.examples {
		fmt.Fprintf(s.out, "  %s %s\n", s.paint(red, "✗"), example)
	}
	if r.ok() {
		fmt.Fprintf(s.out, "\n%s Every committed event has arrived, and each order's events in their order.\n\n", s.paint(green, "✓"))
		return
	}
	fmt.Fprintf(s.out, "\n  The relay last said:\n%s\n", r.log)
	fmt.Fprintf(s.out, "\n%s The relay has not kept its promise. Please report this with the command line.\n\n", s.paint(red, "✗"))
}

func (s *screen) count(name string, n int, what string, fine bool) {
	line := fmt.Sprintf("  %-13s %9s   %s", name, thousands(int64(n)), what)
	if !fine {
		line = s.paint(red, line)
	}
	fmt.Fprintln(s.out, line)
}
