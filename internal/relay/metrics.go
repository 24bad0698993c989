package relay

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// metrics are the relay's own: what came in, how far it is confirmed, and what
// the slot holds back. What went out is counted by package publish. All names
// begin with cdc_relay_, no label comes from a row.
type metrics struct {
	transactions atomic.Uint64
	rows         atomic.Uint64
	histories    atomic.Uint64

	reconnects *prometheus.CounterVec
	mutations  *prometheus.CounterVec
	messages   prometheus.Counter

	dead     *prometheus.CounterVec
	replayed prometheus.Counter
	letters  *prometheus.GaugeVec
	oldest   *prometheus.GaugeVec

	lag, retained, safe prometheus.Gauge
	spilled             prometheus.Gauge
	status              *prometheus.GaugeVec
}

// walStatuses are the values of pg_replication_slots.wal_status.
var walStatuses = [...]string{"reserved", "extended", "unreserved", "lost"}

// ignoredOps are the labels of the mutations that are counted and not sent.
var ignoredOps = map[wal.Kind]string{wal.KindUpdate: "update", wal.KindDelete: "delete", wal.KindTruncate: "truncate"}

func newMetrics(r *Relay, reg prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "cdc_relay_" + name, Help: help})
	}
	m := &metrics{
		reconnects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_replication_reconnects_total", Help: "Replication sessions that ended with an error, by reason.",
		}, []string{"reason"}),
		mutations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_mutations_ignored_total", Help: "Updates, deletes and truncates of published tables, which are not sent.",
		}, []string{"op"}),
		messages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_logical_messages_ignored_total", Help: "Messages of pg_logical_emit_message, which are not sent.",
		}),
		lag:      gauge("slot_lag_bytes", "WAL between the position that the slot has confirmed and the server's end."),
		retained: gauge("slot_retained_wal_bytes", "WAL that the server keeps for the slot."),
		safe: gauge("slot_safe_wal_bytes",
			"WAL that may still be written before the slot is in danger of being lost; -1 without a limit (max_slot_wal_keep_size)."),
		spilled: gauge("slot_spilled_bytes", "Bytes that decoding for the slot has spilled to disk since the server's counters were reset."),
		status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cdc_relay_slot_status", Help: "1 for the slot's wal_status, 0 for the others.",
		}, []string{"status"}),
	}
	m.newLetters()
	for _, op := range ignoredOps {
		m.mutations.WithLabelValues(op)
	}
	if reg != nil {
		reg.MustRegister(m.reconnects, m.mutations, m.messages, m.lag, m.retained, m.safe, m.spilled, m.status,
			m.dead, m.replayed, m.letters, m.oldest)
		m.registerDerived(r, reg)
	}
	return m
}

// registerDerived registers what is read from the state at each scrape.
func (m *metrics) registerDerived(r *Relay, reg prometheus.Registerer) {
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cdc_relay_" + name, Help: help}, value))
	}
	counter := func(name, help string, value *atomic.Uint64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "cdc_relay_" + name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	counter("transactions_received_total", "Commits received.", &m.transactions)
	counter("messages_received_total", "Outbox rows received.", &m.rows)
	counter("history_renewed_total", "Times that the topics and the slot were found not to be of one history.", &m.histories)
	dropped := func(reason, help string, value func() uint64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "cdc_relay_headers_dropped_total", Help: help, ConstLabels: prometheus.Labels{"reason": reason},
		}, func() float64 { return float64(value()) }))
	}
	const help = "Headers of rows that were not sent: reserved names, and headers columns that hold no JSON object."
	dropped("reserved", help, func() uint64 { return r.mapper.Dropped().Reserved })
	dropped("malformed", help, func() uint64 { return r.mapper.Dropped().Malformed })
	gauge("ready", "1 while /readyz says 200.", func() float64 { return truth(r.Status().Ready()) })
	gauge("leader", "1 while this process holds the slot.", func() float64 { return truth(r.Status().Role == RoleLeader) })
	gauge("replication_connected", "1 while the replication stream is up.", func() float64 { return truth(r.Status().Connected) })
	gauge("received_lsn_bytes", "Highest position received, as bytes of WAL.", func() float64 { return float64(r.Status().Received) })
	gauge("confirmed_lsn_bytes", "Position confirmed to the server, as bytes of WAL.", func() float64 { return float64(r.Status().Confirmed) })
	gauge("last_progress_timestamp_seconds", "When the last message arrived on the stream.", func() float64 { return seconds(r.Status().LastMessage) })
	gauge("last_confirm_timestamp_seconds", "When the confirmed position moved last.", func() float64 { return seconds(r.Status().LastConfirm) })
}

// slot takes over what the server says of the slot.
func (m *metrics) slot(s catalog.Slot) {
	m.lag.Set(float64(s.LagBytes()))
	m.retained.Set(float64(s.RetainedBytes()))
	m.safe.Set(float64(s.SafeWALBytes))
	m.spilled.Set(float64(s.Spill.Bytes))
	for _, status := range walStatuses {
		m.status.WithLabelValues(status).Set(truth(status == s.WALStatus))
	}
}

func (m *metrics) reconnect(reason string) {
	m.reconnects.WithLabelValues(strings.ToLower(reason)).Inc()
}

// ignored counts a message that is not sent.
func (m *metrics) ignored(kind wal.Kind) {
	if op, ok := ignoredOps[kind]; ok {
		m.mutations.WithLabelValues(op).Inc()
	} else if kind == wal.KindLogical {
		m.messages.Inc()
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
