package main

import (
	"fmt"
	"math"
)

// summary prints the outcome.
func (s *screen) summary(r result) {
	fmt.Fprintf(s.out, "\n%s  %s\n\n", s.paint(bold, "Summary"), "the outbox table compared with the topics, and the orders with what the consumers have done")
	rate := thousands(int64(math.Round(float64(r.committed) / r.worked.Seconds())))
	s.count("committed", r.committed, "rows of public.outbox, "+rate+" a second", true)
	s.count("delivered", r.delivered, "of these rows", true)
	s.count("missing", r.missing, "committed and never delivered", r.missing == 0)
	s.count("duplicate", r.duplicate, "further copies; allowed, delivery is at-least-once", true)
	s.count("out of order", r.outOfOrder, "within one order or item", r.outOfOrder == 0)
	s.count("rolled back", int(r.rolledBack), "transactions; none of their events may arrive", true)
	s.count("stray", r.stray, "records without a committed row", r.stray == 0)
	fmt.Fprintf(s.out, "  %-13s p50 %s   p99 %s   max %s, from COMMIT to a reader of the topics\n",
		"latency", short(r.p50), short(r.p99), short(r.max))
	s.effect("shipments", r.effects.Shipped, r.effects.CheckedOut, "orders checked out have exactly one")
	s.effect("invoices", r.effects.Billed, r.effects.Orders, "orders have one that adds up")
	s.effect("audit trail", r.effects.Audited, r.effects.StockChanges, "changes of the inventory are in it, without a hole")
	if n := r.effects.DeadLetters; n > 0 {
		s.count("dead letters", n, "messages that no consumer could handle, or that wait behind one", false)
	}
	if r.kills > 0 || r.consumerKills > 0 {
		s.count("kills", int(r.kills+r.consumerKills), fmt.Sprintf("with SIGKILL, %d of the relay and %d of consumers, and starts after them",
			r.kills, r.consumerKills), true)
	}
	for _, example := range append(r.examples, r.effects.Wrong...) {
		fmt.Fprintf(s.out, "  %s %s\n", s.paint(red, "✗"), example)
	}
	if r.ok() {
		fmt.Fprintf(s.out, "\n%s Every committed event has arrived, each order's in their order, and has had its effect exactly once.\n\n",
			s.paint(green, "✓"))
		return
	}
	fmt.Fprintf(s.out, "\n  The processes last said:\n%s\n", r.log)
	fmt.Fprintf(s.out, "\n%s cdc-relay has not kept its promise. Please report this with the command line.\n\n", s.paint(red, "✗"))
}

// effect prints how many of what there should be are as they should be.
func (s *screen) effect(name string, n, of int, what string) {
	s.count(name, n, fmt.Sprintf("of %s %s", thousands(int64(of)), what), n == of)
}

func (s *screen) count(name string, n int, what string, fine bool) {
	line := fmt.Sprintf("  %-13s %9s   %s", name, thousands(int64(n)), what)
	if !fine {
		line = s.paint(red, line)
	}
	fmt.Fprintln(s.out, line)
}
