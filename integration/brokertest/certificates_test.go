package brokertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificates are PEM files: an authority, a server certificate for localhost and 127.0.0.1, a client certificate, and
// an authority that signed neither.
type certificates struct{ ca, client, clientKey, otherCA string }

type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func makeCertificates(dir string) (certificates, error) {
	c := certificates{
		ca: filepath.Join(dir, "ca.pem"), otherCA: filepath.Join(dir, "other.pem"),
		client: filepath.Join(dir, "client.pem"), clientKey: filepath.Join(dir, "client.key"),
	}
	ca, err := issue(nil, "authority", c.ca, filepath.Join(dir, "ca.key"))
	if err != nil {
		return c, err
	}
	if _, err := issue(nil, "other authority", c.otherCA, filepath.Join(dir, "other.key")); err != nil {
		return c, err
	}
	if _, err := issue(ca, "server", filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")); err != nil {
		return c, err
	}
	_, err = issue(ca, "client", c.client, c.clientKey)
	return c, err
}

func issue(by *signer, name, certFile, keyFile string) (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        by == nil, BasicConstraintsValid: true,
	}
	self := &signer{cert: cert, key: key}
	if by == nil {
		by = self
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, by.cert, &key.PublicKey, by.key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	return self, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)
}
