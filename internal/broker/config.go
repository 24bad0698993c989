package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// Defaults of [Config].
const (
	// DefaultRequestTimeout is how long one request may take. A frozen broker
	// holds a lane that long at most, and a healthy one is given half of it to
	// collect the acknowledgements of its replicas.
	DefaultRequestTimeout = 10 * time.Second
	// DefaultClientID names the relay in the brokers' logs and quotas.
	DefaultClientID = "cdc-relay"
)

// Config says how to reach Kafka. The zero value of every field but Brokers is
// usable.
type Config struct {
	// Brokers are the bootstrap addresses, host:port. Give more than one: until
	// the first answer arrives they are all there is. Addresses learned from the
	// cluster are used beside them.
	Brokers []string
	// ClientID is sent with every request. Defaults to DefaultClientID.
	ClientID string
	// TLS is off unless enabled or any of its fields is set.
	TLS TLSConfig
	// SASL is off unless a mechanism is set.
	SASL SASLConfig
	// RequestTimeout bounds one request, the wait for a connection included. The
	// broker itself is given half of it (timeout.ms of a produce request), so that
	// its answer arrives before the client gives up. Defaults to
	// DefaultRequestTimeout.
	RequestTimeout time.Duration
}

// TLSConfig encrypts the connections. The broker's certificate is always verified.
type TLSConfig struct {
	// Enabled turns TLS on with the system's certificate authorities.
	Enabled bool
	// CAFile is a PEM file with the authorities to trust instead.
	CAFile string
	// CertFile and KeyFile are the client's PEM certificate and key (mutual TLS).
	CertFile, KeyFile string
	// ServerName is what the broker's certificate must be valid for. Defaults to
	// the host that is dialled.
	ServerName string
}

// SASLConfig authenticates the connections.
type SASLConfig struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty turns SASL off.
	Mechanism string
	// Username and Password are the credentials. The password appears in no error
	// and no log line.
	Username, Password string
}

func (c TLSConfig) on() bool { return c != TLSConfig{} }

// Validate returns every problem of the configuration, joined. It reads no file.
func (c Config) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("kafka.brokers is empty: name at least one host:port"))
	}
	for _, a := range c.Brokers {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("kafka.brokers: %q is not host:port", a))
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		errs = append(errs, errors.New("kafka.tls: cert_file and key_file are needed together"))
	}
	if c.RequestTimeout < 0 {
		errs = append(errs, fmt.Errorf("kafka.request_timeout is negative (%s)", c.RequestTimeout))
	}
	if c.SASL.Mechanism == "" && (c.SASL.Username != "" || c.SASL.Password != "") {
		errs = append(errs, errors.New("kafka.sasl: credentials without a mechanism: set kafka.sasl.mechanism"))
	}
	if c.SASL.Mechanism != "" && c.SASL.Username == "" {
		errs = append(errs, errors.New("kafka.sasl.username is empty"))
	}
	if _, err := c.SASL.mechanism(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c SASLConfig) mechanism() (sasl.Mechanism, error) {
	switch strings.ToUpper(c.Mechanism) {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Mechanism{Username: c.Username, Password: c.Password}, nil
	case "SCRAM-SHA-256":
		return scramMechanism(scram.SHA256, c)
	case "SCRAM-SHA-512":
		return scramMechanism(scram.SHA512, c)
	}
	return nil, fmt.Errorf("kafka.sasl.mechanism: %q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", c.Mechanism)
}

// scramMechanism hides the library's error, which may quote the credentials.
func scramMechanism(algo scram.Algorithm, c SASLConfig) (sasl.Mechanism, error) {
	m, err := scram.Mechanism(algo, c.Username, c.Password)
	if err != nil {
		return nil, errors.New("kafka.sasl: username or password has characters that SCRAM does not allow (RFC 4013)")
	}
	return m, nil
}

func (c TLSConfig) load() (*tls.Config, error) {
	if !c.on() {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read kafka.tls.ca_file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka.tls.ca_file %s holds no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load kafka.tls.cert_file and key_file: %w", err)
		}
		out.Certificates = []tls.Certificate{cert}
	}
	return out, nil
}
