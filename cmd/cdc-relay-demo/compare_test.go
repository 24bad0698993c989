package main

import (
	"slices"
	"testing"
	"time"
)

// Two orders, in the order of their commits.
func committed() []event {
	return []event{
		{"a1", "o-1", 1},
		{"b1", "o-2", 1},
		{"a2", "o-1", 2},
		{"a3", "o-1", 3},
		{"b2", "o-2", 2},
	}
}

// Whatever goes wrong between the table and the reader is found, and counted for what it is.
func TestCompare(t *testing.T) {
	t.Parallel()
	all := comparison{committed: 5, delivered: 5}
	with := func(change func(*comparison)) comparison {
		c := all
		change(&c)
		return c
	}
	tests := []struct {
		name   string
		damage func(records []event) []event
		want   comparison
		ok     bool
	}{
		{"nothing wrong", func(r []event) []event { return r }, all, true},
		{"another order between", func(r []event) []event { return swap(r, 0, 1) }, all, true},
		{
			"nothing arrives", func([]event) []event { return nil },
			with(func(c *comparison) { c.delivered, c.missing = 0, 5 }), false,
		},
		{
			"missing in the middle", func(r []event) []event { return slices.Delete(r, 2, 3) },
			with(func(c *comparison) { c.delivered, c.missing = 4, 1 }), false,
		},
		{
			"missing at the end", func(r []event) []event { return r[:4] },
			with(func(c *comparison) { c.delivered, c.missing = 4, 1 }), false,
		},
		{
			"out of order", func(r []event) []event { return swap(r, 2, 3) },
			with(func(c *comparison) { c.outOfOrder = 1 }), false,
		},
		{
			"first comes last", func(r []event) []event { return append(r[1:], r[0]) },
			with(func(c *comparison) { c.outOfOrder = 1 }), false,
		},
		{
			"repeated at once", func(r []event) []event { return slices.Insert(r, 1, r[0]) },
			with(func(c *comparison) { c.duplicate = 1 }), true,
		},
		{
			"all repeated after a restart", func(r []event) []event { return append(r, r...) },
			with(func(c *comparison) { c.duplicate = 5 }), true,
		},
		{
			"a copy does not heal the order", func(r []event) []event { return append(swap(r, 2, 3), r...) },
			with(func(c *comparison) { c.outOfOrder, c.duplicate = 1, 5 }), false,
		},
		{
			"a copy does not hide a missing one", func(r []event) []event { return append(r[1:], r[1]) },
			with(func(c *comparison) { c.delivered, c.missing, c.duplicate = 4, 1, 1 }), false,
		},
		{
			"rolled back", func(r []event) []event { return append(r, event{"c1", "o-3", 1}) },
			with(func(c *comparison) { c.stray = 1 }), false,
		},
		{
			"unreadable", func(r []event) []event { return append(r, event{}) },
			with(func(c *comparison) { c.stray = 1 }), false,
		},
		{
			"wrong key", func(r []event) []event { r[0].key = "o-9"; return r },
			with(func(c *comparison) { c.delivered, c.missing, c.stray = 4, 1, 1 }), false,
		},
		{
			"wrong payload", func(r []event) []event { r[4].version = 7; return r },
			with(func(c *comparison) { c.delivered, c.missing, c.stray = 4, 1, 1 }), false,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := compare(committed(), test.damage(committed()))
			if got.ok() != test.ok {
				t.Errorf("ok is %v", got.ok())
			}
			if wrong := got.missing + got.outOfOrder + got.stray; len(got.examples) != wrong {
				t.Errorf("got %d examples of %d: %q", len(got.examples), wrong, got.examples)
			}
			got.examples = nil
			if !equal(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func swap(r []event, i, j int) []event {
	r = slices.Clone(r)
	r[i], r[j] = r[j], r[i]
	return r
}

func equal(a, b comparison) bool {
	return a.committed == b.committed && a.delivered == b.delivered && a.missing == b.missing &&
		a.duplicate == b.duplicate && a.outOfOrder == b.outOfOrder && a.stray == b.stray
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for n := time.Duration(100); n > 0; n-- {
		hundred = append(hundred, n)
	}
	tests := []struct {
		values  []time.Duration
		percent int
		want    time.Duration
	}{
		{nil, 50, 0},
		{[]time.Duration{7}, 50, 7},
		{[]time.Duration{7}, 99, 7},
		{[]time.Duration{9, 1, 5}, 50, 5},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	}
	for _, test := range tests {
		if got := percentile(slices.Clone(test.values), test.percent); got != test.want {
			t.Errorf("percentile(%d values, %d) = %d, want %d", len(test.values), test.percent, got, test.want)
		}
	}
}
