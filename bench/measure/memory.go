package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
)

// Memory is what one huge transaction cost while Kafka took a tenth of what the relay can drain.
type Memory struct {
	Rows          int     `json:"rows"`
	RowBytes      int     `json:"row_bytes"`             // of the payload, as text
	DrainRate     float64 `json:"drain_rows_per_second"` // without a limit, on a smaller transaction
	BytesPerSec   float64 `json:"limit_bytes_per_second"`
	Seconds       float64 `json:"seconds"`
	EventsPerSec  float64 `json:"events_per_second"`
	PeakBytes     int64   `json:"peak_bytes"`           // VmHWM
	InFlightBytes int64   `json:"in_flight_peak_bytes"` // highest sample of cdc_relay_in_flight_bytes
	BeforeBytes   int64   `json:"idle_peak_bytes"`      // VmHWM when the relay streams and nothing has come yet
}

const (
	// memoryPayload is what is added to the ordinary payload to make it 1 KB.
	memoryPayload = 785
	// memoryProbe is the largest part of the rows that the drain rate is found with.
	memoryProbe = 100_000
	// memoryInterval is how often memory and bytes in flight are sampled.
	memoryInterval = 200 * time.Millisecond
)

// Memory measures the peak memory of the relay in one transaction of Options.MemoryRows rows of 1 KB, while the broker
// takes a tenth of the rate at which the relay drains a smaller one: a proxy before it passes on no more.
func (l *Lab) Memory(ctx context.Context) (Memory, error) {
	m := Memory{Rows: l.opts.MemoryRows}
	limit, err := l.probe(ctx, &m)
	if err != nil {
		return m, fmt.Errorf("find the drain rate: %w", err)
	}
	m.BytesPerSec = limit
	slot, err := l.newSlot(ctx)
	if err != nil {
		return m, err
	}
	if err := l.createTopic(ctx, topicOf(slot)); err != nil {
		return m, err
	}
	l.slow.Limit(proxy.ToServer, int(limit)/partitions) // of a connection; each lane has one
	defer l.slow.Heal()
	relay, err := l.startRelay(ctx, slot, map[string]any{"kafka.brokers": []string{l.slow.Addr()}})
	if err != nil {
		return m, err
	}
	defer func() { _ = relay.Signal(syscall.SIGKILL) }()
	if m.BeforeBytes, err = peakOf(relay.PID()); err != nil {
		return m, err
	}
	if err := l.swallow(ctx, slot, relay, &m); err != nil {
		return m, fmt.Errorf("%w: %s", err, relay.output)
	}
	if err := relay.Stop(ctx, syscall.SIGTERM); err != nil {
		return m, err
	}
	return m, errors.Join(l.dropSlot(ctx, slot), l.deleteTopic(ctx, topicOf(slot)), l.clear(ctx))
}

// probe drains a transaction without a limit and returns a tenth of the bytes a second that Kafka took.
func (l *Lab) probe(ctx context.Context, m *Memory) (float64, error) {
	base, err := l.newSlot(ctx)
	if err != nil {
		return 0, err
	}
	rows := min(m.Rows, memoryProbe)
	target, err := l.fill(ctx, 1, rows, memoryPayload)
	if err != nil {
		return 0, err
	}
	if err := l.db.QueryRow(ctx, "SELECT round(avg(length(payload::text)))::int FROM public.outbox").Scan(&m.RowBytes); err != nil {
		return 0, err
	}
	run, err := l.drainRelay(ctx, base, target, rows)
	if err != nil {
		return 0, err
	}
	l.say("drain of %d rows of %d bytes: %s", rows, m.RowBytes, run)
	m.DrainRate = run.EventsPerSecond
	const overhead = 250 // key, headers and framing of a record
	return run.EventsPerSecond / 10 * float64(m.RowBytes+overhead), errors.Join(l.dropSlot(ctx, base), l.clear(ctx))
}

// swallow writes the transaction and samples until the relay has confirmed it.
func (l *Lab) swallow(ctx context.Context, slot string, relay *relayChild, m *Memory) error {
	target, err := l.fill(ctx, 1, m.Rows, memoryPayload)
	if err != nil {
		return err
	}
	began, told := time.Now(), time.Now()
	for {
		s, err := l.slot(ctx, slot)
		if err != nil {
			return err
		}
		if !relay.Running() {
			return relay.failure()
		}
		if m.PeakBytes, err = peakOf(relay.PID()); err != nil {
			return err
		}
		inFlight, err := relay.metric(ctx, "cdc_relay_in_flight_bytes")
		if err != nil {
			return err
		}
		m.InFlightBytes = max(m.InFlightBytes, int64(inFlight))
		if s.confirmed >= target {
			m.Seconds = time.Since(began).Seconds()
			m.EventsPerSec = float64(m.Rows) / m.Seconds
			return nil
		}
		if time.Since(told) > 20*time.Second {
			told = time.Now()
			l.say("peak %.0f MiB, in flight %.1f MiB", float64(m.PeakBytes)/(1<<20), inFlight/(1<<20))
		}
		if err := pause(ctx, memoryInterval); err != nil {
			return err
		}
	}
}

// relayChild is a relay whose HTTP address is known.
type relayChild struct {
	*child
	http string
}

// metric reads one metric without labels.
func (r *relayChild) metric(ctx context.Context, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.http+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read the relay's metrics: %w", err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("the relay has no metric %s", name)
}
