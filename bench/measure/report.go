package measure

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Report is everything that was measured in one run.
type Report struct {
	Machine Machine   `json:"machine"`
	Drain   []Drain   `json:"drain,omitempty"`
	Latency []Latency `json:"latency,omitempty"`
	Memory  *Memory   `json:"memory,omitempty"`
	Claim   *Claim    `json:"claim,omitempty"`
}

// Machine is what the figures depend on.
type Machine struct {
	Time          time.Time `json:"time"`
	Commit        string    `json:"commit"`
	System        string    `json:"system"`
	Processor     string    `json:"processor"`
	Cores         int       `json:"cores"`
	Go            string    `json:"go"`
	Postgres      string    `json:"postgres"`
	Kafka         string    `json:"kafka"`
	PgRecvlogical string    `json:"pg_recvlogical"`
	Load          string    `json:"load"` // load average before the first measurement
}

// Machine describes where the Lab runs.
func (l *Lab) Machine(ctx context.Context) Machine {
	m := Machine{
		Time: time.Now().UTC().Truncate(time.Second), System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
		Go: runtime.Version(), Kafka: "4.3.1, one broker", PgRecvlogical: "not installed",
	}
	m.Commit = firstLine(ctx, "git", "describe", "--always", "--dirty")
	_ = l.db.QueryRow(ctx, "SHOW server_version").Scan(&m.Postgres)
	if line := firstLine(ctx, "pg_recvlogical", "--version"); line != "" {
		m.PgRecvlogical = strings.TrimPrefix(line, "pg_recvlogical (PostgreSQL) ")
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(text), "model name")
		name, _, _ := strings.Cut(rest, "\n")
		m.Processor = strings.TrimLeft(name, "\t :")
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			m.Load = fields[0]
		}
	}
	return m
}

func firstLine(ctx context.Context, name string, args ...string) string {
	output, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(output), "\n")
	return line
}

// Markdown returns the report as tables.
func (r Report) Markdown() string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "cdc-relay %s, %s, %s, %d cores (%s), %s, PostgreSQL %s, Kafka %s, pg_recvlogical %s, load %s before the start\n",
		m.Commit, m.Time.Format(time.RFC3339), m.System, m.Cores, m.Processor, m.Go, m.Postgres, m.Kafka, m.PgRecvlogical, m.Load)
	if len(r.Drain) > 0 {
		b.WriteString("\n| drain | reader | start, s | events/s | ratio (range) | own CPU/event | walsender CPU/event | broker CPU/event | peak memory |\n|---|---|---|---|---|---|---|---|---|\n")
	}
	for _, d := range r.Drain {
		shape := fmt.Sprintf("%d rows, %d a transaction", d.Rows, d.RowsPerTransaction)
		ratio := "–"
		if d.Reference != nil {
			ratio = fmt.Sprintf("**%.2f** (%.2f–%.2f)", d.Ratio, d.RatioRange[0], d.RatioRange[1])
		}
		writeRun(&b, shape, "relay → Kafka", ratio, d.Relay)
		if d.Reference != nil {
			writeRun(&b, "", "pg_recvlogical → nowhere", "1", *d.Reference)
		}
	}
	if len(r.Latency) > 0 {
		b.WriteString("\n| commit to consumer | events | p50 | p99 | p99.9 | max | p50 from COMMIT sent |\n|---|---|---|---|---|---|---|\n")
	}
	for _, l := range r.Latency {
		fmt.Fprintf(&b, "| %d/s | %d | %.2f ms | %.2f ms | %.2f ms | %.2f ms | %.2f ms |\n",
			l.Rate, l.Events, l.Committed.P50, l.Committed.P99, l.Committed.P999, l.Committed.Max, l.Commit.P50)
	}
	if m := r.Memory; m != nil {
		b.WriteString("\n| one transaction | broker takes | events/s | peak memory (VmHWM) | of it before the first row | highest in flight |\n|---|---|---|---|---|---|\n")
		fmt.Fprintf(&b, "| %d rows of %d bytes | %s/s (drain: %.0f events/s) | %.0f | %s | %s | %s |\n", m.Rows, m.RowBytes,
			mib(int64(m.BytesPerSec)), m.DrainRate, m.EventsPerSec, mib(m.PeakBytes), mib(m.BeforeBytes), mib(m.InFlightBytes))
	}
	if c := r.Claim; c != nil {
		b.WriteString("\n| consumer | with the claim | without | ratio (range) |\n|---|---|---|---|\n")
		fmt.Fprintf(&b, "| %d messages, %d at a time, one insert each | %.0f/s | %.0f/s | **%.2f** (%.2f–%.2f) |\n",
			c.Messages, c.Concurrency, c.With, c.Without, c.Ratio, c.RatioRange[0], c.RatioRange[1])
	}
	return b.String()
}

func writeRun(b *strings.Builder, shape, reader, ratio string, r DrainRun) {
	fmt.Fprintf(b, "| %s | %s | %.2f | %.0f | %s | %.2f µs | %.2f µs | %.2f µs | %s |\n",
		shape, reader, r.StartSeconds, r.EventsPerSecond, ratio, r.CPUMicroseconds, r.WalsenderMicro, r.BrokerMicro, mib(r.PeakBytes))
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
