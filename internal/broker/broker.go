package broker

import (
	"context"
	"crypto/tls"
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
	"github.com/segmentio/kafka-go/sasl"
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
	tls       *tls.Config
	mechanism sasl.Mechanism

	mu        sync.Mutex
	transport *kafka.Transport
	// topics are those that metadata is read for: the ones asked about so far. To
	// name them keeps the answer small on a large cluster, and tells a topic that
	// this user may not describe from one that does not exist.
	topics []string
	// addresses, as addr, are what metadata is read from: bootstrap and learned.
	addresses   []string
	addr        net.Addr
	lastRefresh time.Time
	login       loginPause
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
	b := &Broker{
		cfg:       cfg,
		log:       log,
		topics:    []string{}, // Not nil, which would read all topics.
		addr:      kafka.TCP(cfg.Brokers...),
		addresses: slices.Clone(cfg.Brokers),
	}
	var err error
	if b.tls, err = cfg.TLS.load(); err != nil {
		return nil, err
	}
	if b.mechanism, err = cfg.SASL.mechanism(); err != nil {
		return nil, err
	}
	b.transport = b.newTransport()
	return b, nil
}

// newTransport returns a transport that reads the metadata of the present topics.
func (b *Broker) newTransport() *kafka.Transport {
	return &kafka.Transport{
		Dial:           b.dial,
		DialTimeout:    connectTimeout,
		MetadataTTL:    metadataTTL,
		MetadataTopics: slices.Clone(b.topics),
		ClientID:       b.cfg.ClientID,
		TLS:            b.tls,
		SASL:           b.mechanism,
	}
}

// Close closes idle connections and lets those in use close when their request is
// answered or times out. No request may follow.
func (b *Broker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.transport.CloseIdleConnections()
}

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
// cluster answered and has no such topic.
func (b *Broker) Partitions(ctx context.Context, topic string) (int, error) {
	t, err := b.topicMetadata(ctx, topic)
	if err != nil {
		return 0, b.fail("look up topic "+topic, err)
	}
	return len(t.Partitions), nil
}

func (b *Broker) topicMetadata(ctx context.Context, topic string) (*metadata.ResponseTopic, error) {
	b.follow(topic)
	meta, err := b.metadata(ctx)
	if err != nil {
		return nil, err
	}
	b.widen(ctx, meta.Brokers)
	return findTopic(meta, topic)
}

// PartitionsNow is Partitions by an answer of a broker to this call, on a connection of
// its own: the transport's cache cannot tell that a topic has just been made.
func (b *Broker) PartitionsNow(ctx context.Context, topic string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	b.mu.Lock()
	transport, addr := b.newTransport(), b.addr
	b.mu.Unlock()
	transport.MetadataTopics = []string{topic}
	defer transport.CloseIdleConnections()
	t, err := readTopic(ctx, transport, addr, topic)
	if err != nil {
		return 0, b.fail("look up topic "+topic, err)
	}
	return len(t.Partitions), nil
}

func readTopic(ctx context.Context, transport *kafka.Transport, addr net.Addr, topic string) (*metadata.ResponseTopic, error) {
	r, err := transport.RoundTrip(ctx, addr, new(metadata.Request))
	if err != nil {
		return nil, err
	}
	meta, err := layout(r)
	if err != nil {
		return nil, err
	}
	return findTopic(meta, topic)
}

// findTopic returns what metadata says of a topic, if it has partitions.
func findTopic(meta *metadata.Response, topic string) (*metadata.ResponseTopic, error) {
	for i := range meta.Topics {
		t := &meta.Topics[i]
		if t.Name != topic {
			continue
		}
		switch code := kafka.Error(t.ErrorCode); {
		case code == kafka.UnknownTopicOrPartition:
			return nil, ErrUnknownTopic
		case code != 0:
			return nil, code
		case len(t.Partitions) > 0:
			return t, nil
		}
	}
	return nil, ErrUnknownTopic
}

// follow adds a topic to those that metadata is read for. A transport cannot learn
// of one, so a new one takes over, once per topic; requests under way end on the
// old one.
func (b *Broker) follow(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Contains(b.topics, topic) {
		return
	}
	old := b.transport
	b.topics = append(b.topics, topic)
	b.transport = b.newTransport()
	old.CloseIdleConnections()
}

// metadata reads the transport's cache of the cluster layout, waiting for the
// first answer.
func (b *Broker) metadata(ctx context.Context) (*metadata.Response, error) {
	r, err := b.roundTrip(ctx, new(metadata.Request))
	if err != nil {
		return nil, err
	}
	return layout(r)
}

func layout(r protocol.Message) (*metadata.Response, error) {
	m, ok := r.(*metadata.Response)
	if !ok {
		return nil, fmt.Errorf("unexpected answer %T", r)
	}
	return m, nil
}

// widen adds brokers learned to the addresses that metadata is read from. The
// transport asks only those, so with one bootstrap address whose broker dies it
// would never learn of the new leaders.
func (b *Broker) widen(ctx context.Context, brokers []metadata.ResponseBroker) {
	learned := make([]string, 0, len(brokers))
	for _, m := range brokers {
		learned = append(learned, net.JoinHostPort(m.Host, strconv.Itoa(int(m.Port))))
	}
	if b.learn(learned) {
		b.warnAlone(ctx, len(brokers))
	}
}

// learn adds addresses to those that metadata is read from. It reports whether there
// was one only, which the configuration names.
func (b *Broker) learn(learned []string) (alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(learned, func(a string) bool { return !slices.Contains(b.addresses, a) }) {
		return false
	}
	all := slices.Clone(b.cfg.Brokers)
	for _, a := range learned {
		if !slices.Contains(all, a) && len(all) < maxAddresses {
			all = append(all, a)
		}
	}
	if slices.Equal(all, b.addresses) {
		return false
	}
	alone = len(b.addresses) == 1
	b.addresses, b.addr = all, kafka.TCP(all...)
	// The pool of the old address list is not used again.
	b.transport.CloseIdleConnections()
	return alone
}

// warnAlone warns of a single bootstrap address for several brokers, unless it is a
// name of several machines: then a connection tries one after the other.
func (b *Broker) warnAlone(ctx context.Context, brokers int) {
	address := b.cfg.Brokers[0]
	host, _, err := net.SplitHostPort(address)
	if err != nil || brokers < 2 {
		return
	}
	if machines, err := net.DefaultResolver.LookupHost(ctx, host); err == nil && len(machines) > 1 {
		return
	}
	b.log.Warn("one bootstrap address for several brokers: while that one is down the relay cannot start, add others to kafka.brokers",
		slog.String("address", address), slog.Int("brokers", brokers))
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
	transport, addr := b.transport, b.addr
	b.mu.Unlock()
	return transport.RoundTrip(ctx, addr, req)
}
