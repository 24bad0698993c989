package relay

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// burials says which rows become dead letters, in one line a second at most. The zero
// value is ready.
type burials struct {
	mu   sync.Mutex
	said time.Time
	more int // since then, not said
}

// maxIDShown bounds what a line of the log shows of a message id.
const maxIDShown = 100

// say tells of one more dead letter. Neither key nor payload is in the line.
func (b *burials) say(log *slog.Logger, l *deadletter.Letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.said) < time.Second {
		b.more++
		return
	}
	id := l.MessageID
	if len(id) > maxIDShown {
		id = id[:maxIDShown]
	}
	args := []any{"message_id", string(id), "position", l.Position.String(), "topic", l.Topic, "reason", string(l.Reason), "err", l.Error}
	if l.ID != 0 {
		args = append(args, "replay", l.Replays, "letter", l.ID)
	}
	log.Warn("dead letter", b.counted(args)...)
}

// rest tells of those that had no line of their own.
func (b *burials) rest(log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more > 0 && time.Since(b.said) >= time.Second {
		log.Warn("more dead letters", b.counted(nil)...)
	}
}

func (b *burials) counted(args []any) []any {
	if b.more > 0 {
		args = append(args, "more", b.more)
	}
	b.said, b.more = time.Now(), 0
	return args
}

// newLetters makes the metrics of the dead letters.
func (m *metrics) newLetters() {
	m.dead = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cdc_relay_messages_dead_lettered_total", Help: "Rows that became dead letters, and replays that were refused, by topic and reason.",
	}, []string{"topic", "reason"})
	m.replayed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "cdc_relay_dead_letters_replayed_total", Help: "Dead letters that were given to their partition again.",
	})
	m.letters = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cdc_relay_dead_letters", Help: "Dead letters of the slot that wait for a decision, by reason.",
	}, []string{"source", "reason"})
	m.oldest = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cdc_relay_dead_letter_oldest_timestamp_seconds", Help: "When the oldest of these was written.",
	}, []string{"source", "reason"})
}

// buried counts a dead letter. A topic that cannot be is no label.
func (m *metrics) buried(l *deadletter.Letter) {
	topic := l.Topic
	if l.Reason == deadletter.InvalidTopic || l.Reason == deadletter.InvalidRow {
		topic = ""
	}
	m.dead.WithLabelValues(topic, string(l.Reason)).Inc()
}

// lettersSource is the label of dead letters of the relay, beside those of others.
const lettersSource = "relay"

// waiting takes over how many dead letters there are; nil when that is not known.
func (m *metrics) waiting(stats []deadletter.Stat) {
	there := map[string]bool{}
	for _, s := range stats {
		if s.State == deadletter.Dead {
			there[string(s.Reason)] = true
			m.letters.WithLabelValues(lettersSource, string(s.Reason)).Set(float64(s.Count))
			m.oldest.WithLabelValues(lettersSource, string(s.Reason)).Set(seconds(s.Oldest))
		}
	}
	for _, reason := range deadReasons {
		if !there[string(reason)] {
			m.letters.DeleteLabelValues(lettersSource, string(reason))
			m.oldest.DeleteLabelValues(lettersSource, string(reason))
		}
	}
}

var deadReasons = [...]deadletter.Reason{
	deadletter.TooLarge, deadletter.InvalidRecord, deadletter.InvalidTimestamp, deadletter.InvalidTopic,
	deadletter.InvalidRow, deadletter.UnknownTopic, deadletter.Attempts, deadletter.ValueGone,
}
