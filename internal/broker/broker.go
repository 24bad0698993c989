package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

const (
	// metadataTTL bounds the age of the cached cluster layout. A leader that moved
	// is found within a second even when nobody asks.
	metadataTTL = time.Second
	// refreshInterval limits Refresh, which costs every connection.
	refreshInterval = 250 * time.Millisecond
	// maxAddresses bounds what is dialled for metadata: bootstrap addresses first,
	// then brokers learned.
	maxAddresses = 16
)

// Broker sends requests to a Kafka cluster. It is safe for concurrent use.
// Connections are opened on demand; Close ends them.
type Broker struct {
	cfg       Config
	log       *slog.Logger
	transport *kafka.Transport

	mu          sync.Mutex
	addr        net.Addr // bootstrap and learned addresses, what metadata is read from
	addresses   []string
	lastRefresh time.Time
}

// Open prepares the connections to the cluster without making one; use Ping to
// find out whether it answers. Errors are about the configuration only: addresses,
// certificate files, SASL mechanism.
func Open(cfg Config, log *slog.Logger) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = DefaultRequestTimeout
	}
	if cfg.ClientID == "" {
		cfg.ClientID = DefaultClientID
	}
	tlsConfig, err := cfg.TLS.load()
	if err != nil {
		return nil, err
	}
	mechanism, err := cfg.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	limit := cfg.RequestTimeout
	return &Broker{
		cfg: cfg,
		log: log,
		transport: &kafka.Transport{
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				return dial(ctx, network, address, limit)
			},
			DialTimeout: connectTimeout,
			MetadataTTL: metadataTTL,
			ClientID:    cfg.ClientID,
			TLS:         tlsConfig,
			SASL:        mechanism,
		},
		addr:      kafka.TCP(cfg.Brokers...),
		addresses: slices.Clone(cfg.Brokers),
	}, nil
}

// Close closes idle connections and lets those in use close when their request is
// answered or times out. No request may follow.
func (b *Broker) Close() { b.transport.CloseIdleConnections() }

// RequestTimeout is the limit of one request in force.
func (b *Broker) RequestTimeout() time.Duration { return b.cfg.RequestTimeout }

// Ping asks one broker for an answer on the wire, unlike Partitions, which reads a
// cache.
func (b *Broker) Ping(ctx context.Context) error {
	if _, err := b.roundTrip(ctx, new(apiversions.Request)); err != nil {
		return b.fail("reach kafka", err)
	}
	// A listener that wants SASL answers the versions without it and closes the
	// connection on the next request; the metadata read tells.
	if _, err := b.metadata(ctx); err != nil {
		return b.fail("read kafka metadata", err)
	}
	return nil
}

// Partitions returns the partition count of a topic from metadata that is at most
// about a second old. It returns an error that wraps ErrUnknownTopic when the
// cluster answered and has no such topic (a topic that this user may not describe
// looks the same).
func (b *Broker) Partitions(ctx context.Context, topic string) (int, error) {
	meta, err := b.metadata(ctx)
	if err != nil {
		return 0, b.fail("read kafka metadata", err)
	}
	b.widen(meta.Brokers)
	for i := range meta.Topics {
		t := &meta.Topics[i]
		if t.Name != topic {
			continue
		}
		switch code := kafka.Error(t.ErrorCode); {
		case code == kafka.UnknownTopicOrPartition:
			return 0, b.fail("look up topic "+topic, ErrUnknownTopic)
		case code != 0 && len(t.Partitions) == 0:
			return 0, b.fail("look up topic "+topic, code)
		}
		return len(t.Partitions), nil
	}
	return 0, b.fail("look up topic "+topic, ErrUnknownTopic)
}

// metadata reads the transport's cache of the cluster layout, waiting for the
// first answer.
func (b *Broker) metadata(ctx context.Context) (*metadata.Response, error) {
	r, err := b.roundTrip(ctx, new(metadata.Request))
	if err != nil {
		return nil, err
	}
	m, ok := r.(*metadata.Response)
	if !ok {
		return nil, fmt.Errorf("unexpected answer %T", r)
	}
	return m, nil
}

// widen adds brokers learned to the addresses that metadata is read from. The
// transport asks only those, so with one bootstrap address whose broker dies it
// would never learn of the new leaders.
func (b *Broker) widen(brokers []metadata.ResponseBroker) {
	learned := make([]string, 0, len(brokers))
	for _, m := range brokers {
		learned = append(learned, net.JoinHostPort(m.Host, strconv.Itoa(int(m.Port))))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(learned, func(a string) bool { return !slices.Contains(b.addresses, a) }) {
		return
	}
	all := slices.Clone(b.cfg.Brokers)
	for _, a := range learned {
		if !slices.Contains(all, a) && len(all) < maxAddresses {
			all = append(all, a)
		}
	}
	if slices.Equal(all, b.addresses) {
		return
	}
	b.addresses, b.addr = all, kafka.TCP(all...)
	// The pool of the old address list is not used again.
	b.transport.CloseIdleConnections()
}

// Refresh discards the cached cluster layout: the next request reads it anew. To
// close the connections is the only way to make the transport do so. It does
// nothing within 250 ms of the last time.
func (b *Broker) Refresh() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.Sub(b.lastRefresh) >= refreshInterval {
		b.lastRefresh = now
		b.transport.CloseIdleConnections()
	}
}

// roundTrip sends one request under the request's time limit.
func (b *Broker) roundTrip(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	b.mu.Lock()
	addr := b.addr
	b.mu.Unlock()
	return b.transport.RoundTrip(ctx, addr, req)
}
