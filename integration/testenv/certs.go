package testenv

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// Authority is a certificate authority of a test.
type Authority struct {
	// CAFile holds its certificate in PEM.
	CAFile string

	t    testing.TB
	with *localstack.Authority
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	with, err := localstack.NewAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{CAFile: with.CAFile, t: t, with: with}
}

// Issue is [localstack.Authority.Issue].
func (a *Authority) Issue(name string) (certFile, keyFile string) {
	a.t.Helper()
	certFile, keyFile, err := a.with.Issue(name)
	if err != nil {
		a.t.Fatal(err)
	}
	return certFile, keyFile
}
