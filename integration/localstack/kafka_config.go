package localstack

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Listener names one of the listeners of a Kafka broker.
type Listener string

// The listeners of a broker. Plaintext is always there; the others as [KafkaConfig] asks.
const (
	Plaintext     Listener = "PLAINTEXT"
	TLS           Listener = "SSL"
	SASLPlaintext Listener = "SASL_PLAINTEXT"
	SASLTLS       Listener = "SASL_SSL"
	// Proxied is a plain listener whose clients are sent on to the addresses of KafkaConfig.Advertise.
	Proxied Listener = "PROXIED"
)

// controllerListener is not for clients.
const controllerListener Listener = "CONTROLLER"

// KafkaConfig says which brokers to run. The zero value is a single broker without TLS or SASL.
type KafkaConfig struct {
	// Brokers is the number of brokers. Default 1. Each is a controller too, unless SeparateController is set.
	Brokers int
	// SeparateController adds a process that is the only controller, so that any broker may go.
	SeparateController bool
	// Heap is the most that the heap of one broker may take, as in -Xmx. Default 400m.
	Heap string
	// FullJIT lets the Java runtime optimise fully: slower to start, faster in the long run, for measurements. Default:
	// it compiles quickly and simply, and a broker is up in half the time.
	FullJIT bool
	// Properties go into server.properties of every process, and win over those of this package.
	Properties map[string]string
	// TLS adds the listener TLS, and SASLTLS if there are users. With a CAFile the listener TLS requires a client
	// certificate.
	TLS *TLSFiles
	// Users are name and password of the users of the SASL listeners, with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
	Users map[string]string
	// Advertise adds the listener Proxied: for each broker the address at which clients of that listener find it, one
	// where the caller listens and passes the bytes on to the broker's own Proxied address.
	Advertise []string
	// Progress is told about the first download. May be nil.
	Progress Progress
}

// listeners returns the listeners of every broker.
func (c *KafkaConfig) listeners() []Listener {
	all := []Listener{Plaintext}
	if c.TLS != nil {
		all = append(all, TLS)
	}
	if len(c.Users) > 0 {
		all = append(all, SASLPlaintext)
		if c.TLS != nil {
			all = append(all, SASLTLS)
		}
	}
	if len(c.Advertise) > 0 {
		all = append(all, Proxied)
	}
	return all
}

// properties returns the content of a node's server.properties.
func (k *Kafka) properties(n *Broker) map[string]string {
	replicas := strconv.Itoa(min(3, len(k.brokers)))
	minISR := strconv.Itoa(max(1, min(3, len(k.brokers))-1))
	p := map[string]string{
		"node.id":                                          strconv.Itoa(n.id),
		"controller.quorum.voters":                         k.voters,
		"controller.listener.names":                        string(controllerListener),
		"log.dirs":                                         n.join("data"),
		"auto.create.topics.enable":                        "false",
		"num.partitions":                                   "1",
		"default.replication.factor":                       replicas,
		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "1",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    minISR,
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            minISR,
		"share.coordinator.state.topic.num.partitions":     "1",
		"group.initial.rebalance.delay.ms":                 "0",
		// A broker that comes back is not let in before its old session is over; 9 s by default.
		"broker.session.timeout.ms":    "4000",
		"broker.heartbeat.interval.ms": "500",
	}
	switch {
	case n.controller && n.broker:
		p["process.roles"] = "broker,controller"
	case n.controller:
		p["process.roles"] = "controller"
	default:
		p["process.roles"] = "broker"
	}
	var listeners, advertised, protocols []string
	for name, port := range n.ports {
		if name != controllerListener || n.controller {
			listeners = append(listeners, fmt.Sprintf("%s://%s", name, port.Addr()))
		}
		if name != controllerListener {
			advertised = append(advertised, fmt.Sprintf("%s://%s", name, n.advertisedAddr(k, name)))
		}
	}
	for _, name := range []Listener{Plaintext, TLS, SASLPlaintext, SASLTLS} {
		protocols = append(protocols, fmt.Sprintf("%s:%s", name, name))
	}
	protocols = append(protocols, string(Proxied+":"+Plaintext), string(controllerListener+":"+Plaintext))
	p["listeners"] = strings.Join(listeners, ",")
	p["listener.security.protocol.map"] = strings.Join(protocols, ",")
	if n.broker {
		p["advertised.listeners"] = strings.Join(advertised, ",")
		p["inter.broker.listener.name"] = string(Plaintext)
		k.secure(p)
	}
	maps.Copy(p, k.cfg.Properties)
	return p
}

func (n *Broker) advertisedAddr(k *Kafka, name Listener) string {
	if name == Proxied {
		return k.cfg.Advertise[n.id-1]
	}
	return n.ports[name].Addr()
}

// secure adds the properties of the TLS and SASL listeners.
func (k *Kafka) secure(p map[string]string) {
	if k.cfg.TLS != nil {
		p["ssl.keystore.type"] = "PEM"
		p["ssl.keystore.location"] = k.dir.join("keystore.pem")
		if k.cfg.TLS.CAFile != "" {
			p["ssl.truststore.type"] = "PEM"
			p["ssl.truststore.location"] = k.dir.join("truststore.pem")
			p["listener.name.ssl.ssl.client.auth"] = "required"
		}
	}
	if len(k.cfg.Users) == 0 {
		return
	}
	p["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
	var users strings.Builder
	for _, name := range sortedKeys(k.cfg.Users) {
		fmt.Fprintf(&users, ` user_%s="%s"`, name, k.cfg.Users[name])
	}
	for _, listener := range []Listener{SASLPlaintext, SASLTLS} {
		prefix := "listener.name." + strings.ToLower(string(listener)) + "."
		p[prefix+"plain.sasl.jaas.config"] = "org.apache.kafka.common.security.plain.PlainLoginModule required" + users.String() + ";"
		for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
			p[prefix+mechanism+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		}
	}
}

// copyTLS puts key and certificate into one file, as Kafka's PEM key store wants it. The key must be in PKCS #8 form.
func (k *Kafka) copyTLS() error {
	if k.cfg.TLS == nil {
		return nil
	}
	key, err := os.ReadFile(k.cfg.TLS.KeyFile)
	if err != nil {
		return fmt.Errorf("read TLS key: %w", err)
	}
	cert, err := os.ReadFile(k.cfg.TLS.CertFile)
	if err != nil {
		return fmt.Errorf("read TLS certificate: %w", err)
	}
	store := bytes.Join([][]byte{key, cert}, []byte("\n"))
	if err := os.WriteFile(k.dir.join("keystore.pem"), store, 0o600); err != nil {
		return err
	}
	if k.cfg.TLS.CAFile == "" {
		return nil
	}
	ca, err := os.ReadFile(k.cfg.TLS.CAFile)
	if err != nil {
		return fmt.Errorf("read TLS authority: %w", err)
	}
	return os.WriteFile(k.dir.join("truststore.pem"), ca, 0o600)
}

// format lays out a node's log directory as the storage tool would, from the files that it once made.
func (k *Kafka) format(n *Broker) error {
	data := n.join("data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	const checkpoint = "bootstrap.checkpoint"
	text, err := os.ReadFile(filepath.Join(k.home, "formatted", checkpoint))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, checkpoint), text, 0o644); err != nil {
		return err
	}
	meta := render(map[string]string{
		"version": "1", "cluster.id": k.clusterID, "node.id": strconv.Itoa(n.id), "directory.id": randomUUID(),
	})
	if err := os.WriteFile(filepath.Join(data, "meta.properties"), meta, 0o644); err != nil {
		return err
	}
	return os.WriteFile(n.join("server.properties"), render(k.properties(n)), 0o600)
}

// render writes a Java properties file.
func render(p map[string]string) []byte {
	var b bytes.Buffer
	for _, key := range sortedKeys(p) {
		fmt.Fprintf(&b, "%s=%s\n", key, strings.ReplaceAll(p[key], `\`, `\\`))
	}
	return b.Bytes()
}

// randomUUID returns an id in Kafka's spelling.
func randomUUID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // Never fails.
	id[0] &= 0x7f           // A leading dash would read as an option on the storage tool's command line.
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
