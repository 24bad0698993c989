package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// ErrUnknownTopic is returned by Partitions and TopicSettings when the cluster
// answered and has no such topic.
var ErrUnknownTopic = errors.New("topic does not exist")

// Error is a request that failed. Its text ends with the likely cause where one is
// known, and never holds credentials or record contents.
type Error struct {
	// Op is what was attempted, such as "produce to orders[3]".
	Op string
	// Hint is the likely cause and the next step; empty when Err says enough.
	Hint string
	// Err is the cause, a kafka.Error where a broker answered with a code.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Hint == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s: %v (%s)", e.Op, e.Err, e.Hint)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Denied reports that the brokers refused the credentials. Unlike a withdrawn
// permission, which may be given back, they do not become right by waiting.
func (e *Error) Denied() bool { return Code(e) == int(kafka.SASLAuthenticationFailed) }

// Code is the Kafka error code in err's chain, 0 when there is none.
func Code(err error) int {
	if k, ok := errors.AsType[kafka.Error](err); ok {
		return int(k)
	}
	return 0
}

// MayHaveBeenWritten reports whether a request that ended with err can have
// reached a broker. It is false only for what is refused on this side before a
// byte is written: no connection, no leader known, topic or partition not in the
// metadata. Everything else, a time-out above all, may still be appended later.
func MayHaveBeenWritten(err error) bool {
	if err == nil {
		return true
	}
	var d *dialError
	switch {
	case errors.As(err, &d),
		errors.Is(err, protocol.ErrNoLeader),
		errors.Is(err, protocol.ErrNoTopic),
		errors.Is(err, protocol.ErrNoPartition),
		errors.Is(err, kafka.BrokerNotAvailable),
		errors.Is(err, ErrUnknownTopic):
		return false
	}
	return true
}

// fail wraps err with the operation and what an operator should look at.
func (b *Broker) fail(op string, err error) error {
	var d *dialError
	if errors.Is(err, kafka.SASLAuthenticationFailed) && !errors.As(err, &d) {
		b.mu.Lock()
		b.login.refuse(err, time.Now())
		b.mu.Unlock()
	}
	return &Error{Op: op, Hint: b.hint(err), Err: err}
}

// hint names the likely cause. The broker often says no more than to close the
// connection, so the configuration is part of the evidence.
func (b *Broker) hint(err error) string {
	if h := certificateHint(err); h != "" {
		return h
	}
	var dial *dialError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		return "check kafka.sasl: the username or password is wrong, or the user is unknown for this mechanism"
	case errors.As(err, &dial):
		return "no broker is listening there, or a firewall is in between: check kafka.brokers and the brokers' advertised.listeners"
	case errors.As(err, &record):
		return "the listener does not speak TLS: remove kafka.tls or use the TLS listener's port"
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls"):
		return "the broker refused the TLS handshake: it may want a client certificate, set kafka.tls.cert_file and key_file"
	case strings.Contains(err.Error(), "expecting TLS"):
		return "the listener speaks TLS: configure kafka.tls"
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		return "the listener does not offer " + b.cfg.SASL.Mechanism + ": check kafka.sasl.mechanism"
	case errors.Is(err, kafka.IllegalSASLState):
		return "the listener does not use SASL: remove kafka.sasl or use the SASL listener's port"
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return "the user lacks a permission on the topic: it needs Write and Describe, and Read to look at what was published last"
	case errors.Is(err, kafka.TransactionalIDAuthorizationFailed):
		return "the user lacks the permission to use kafka.transactional_id: it needs an ACL for Write on that TransactionalId"
	case errors.Is(err, kafka.ClusterAuthorizationFailed):
		return "the user lacks a permission on the cluster: it needs Write on a topic, or IdempotentWrite before Kafka 2.8"
	case closed(err):
		return b.closedHint()
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "the broker did not answer in time: it is frozen, overloaded or unreachable"
	}
	return ""
}

func certificateHint(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return "the broker's certificate is not signed by a trusted authority: set kafka.tls.ca_file"
	case errors.As(err, &host):
		return "the broker's certificate is for another name: set kafka.tls.server_name or correct the address"
	case errors.As(err, &invalid):
		return "the broker's certificate is not valid: check its dates and usage"
	}
	return ""
}

func (b *Broker) closedHint() string {
	switch {
	case b.cfg.TLS.on():
		return "the broker closed the connection: the listener may not speak TLS, or it wants a client certificate"
	case b.cfg.SASL.Mechanism == "":
		return "the broker closed the connection: it is stopping, or the listener wants TLS or SASL"
	}
	return "the broker closed the connection: it is stopping, or the listener wants TLS"
}

func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Reason names the kind of failure for a metric's label. It is one of a few words.
func Reason(err error) string {
	var d *dialError
	switch {
	case errors.As(err, &d):
		return "dial"
	case errors.Is(err, protocol.ErrNoLeader):
		return "no_leader"
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition), errors.Is(err, ErrUnknownTopic):
		return "no_topic"
	case closed(err):
		return "connection_closed"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "timeout"
	}
	return "other"
}
