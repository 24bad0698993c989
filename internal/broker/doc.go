// Package broker reaches Kafka: it is the only place that dials a broker.
//
// It turns a [Config] into one kafka-go Transport (TLS, SASL, bootstrap
// addresses, metadata) and offers the few requests the relay needs. It sends what
// it is given and reports what came back; it never retries a produce request and
// knows nothing of producer sequences. Its errors say the likely cause to an
// operator and, through [MayHaveBeenWritten], to the caller whether the broker can
// have seen the request. Package publish decides what follows from that.
package broker
