package securitytest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// postgres is a server with TLS, and a broker that does not matter.
type postgres struct {
	tls     *localstack.Postgres
	brokers []string
	// Files: the authority of the server and another one, a certificate of each for role certified.
	ca, otherCA, cert, key, otherCert, otherKey string
}

// The roles of the server with TLS, beside relay, which may connect either way. All but certified have the password.
var roles = []string{"relay", "tlsonly", "plainonly", "certified"}

func startPostgres(t *testing.T) *postgres {
	t.Helper()
	ca, other := testenv.NewAuthority(t), testenv.NewAuthority(t)
	p := &postgres{ca: ca.CAFile, otherCA: other.CAFile}
	p.cert, p.key = ca.Issue("certified")
	p.otherCert, p.otherKey = other.Issue("certified")
	cert, key := ca.Issue("server")
	var err error
	p.tls, err = localstack.StartPostgres(t.Context(), localstack.PostgresConfig{
		Major: testenv.Major(), NoSync: true,
		TLS: &localstack.TLSFiles{CertFile: cert, KeyFile: key, CAFile: ca.CAFile},
		HBA: []string{
			"hostssl   all tlsonly   all scram-sha-256", "host all tlsonly   all reject",
			"hostnossl all plainonly all scram-sha-256", "host all plainonly all reject",
			"hostssl   all certified all cert", "host all certified all reject",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.tls.Close() })
	broker, err := localstack.StartFake(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Close() })
	p.brokers = broker.Addrs()
	env := p.env(t)
	for _, role := range roles {
		env.Exec(fmt.Sprintf("CREATE ROLE %s LOGIN SUPERUSER PASSWORD '%s'", role, password))
	}
	return p
}

// env is an environment on the server with TLS.
func (p *postgres) env(t *testing.T) *testenv.Env {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka(), testenv.OnPostgres(p.tls))
	env.Brokers = p.brokers
	return env
}

// plain is an environment on the shared server, which has no TLS.
func (p *postgres) plain(t *testing.T) *testenv.Env {
	t.Helper()
	env := testenv.New(t, testenv.NoKafka())
	env.Brokers = p.brokers
	return env
}

// files replaces CA and the like in a connection string by the paths.
func (p *postgres) files(s string) string {
	return strings.NewReplacer("OTHERCA", p.otherCA, "OTHERCERT", p.otherCert, "OTHERKEY", p.otherKey,
		"CA", p.ca, "CERT", p.cert, "KEY", p.key).Replace(s)
}

// as gives the URL another role, with the password unless it has one, and other parameters.
func as(t *testing.T, base, role, parameters string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	name, secret, given := strings.Cut(role, ":")
	if !given {
		secret = password
	}
	u.User = url.UserPassword(name, secret)
	if role == "certified" {
		u.User = url.User(name)
	}
	u.RawQuery = parameters
	return u.String()
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	t.Run("works", p.works)
	t.Run("refuses", p.refuses)
	t.Run("minimum", p.minimum)
	t.Run("lacks", p.lacks)
}

// works goes through the modes of libpq: whether the connections are encrypted is what the server says, of both.
func (p *postgres) works(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		role, host, parameters string
		encrypted              bool
	}{
		"no mode":                  {"relay", "127.0.0.1", "", true},
		"disable":                  {"relay", "127.0.0.1", "sslmode=disable", false},
		"allow":                    {"relay", "127.0.0.1", "sslmode=allow", false},
		"allow, server wants TLS":  {"tlsonly", "127.0.0.1", "sslmode=allow", true},
		"prefer":                   {"relay", "127.0.0.1", "sslmode=prefer", true},
		"prefer, server wants not": {"plainonly", "127.0.0.1", "sslmode=prefer", false},
		"require":                  {"relay", "0.0.0.0", "sslmode=require&channel_binding=require", true},
		"require, authority":       {"relay", "0.0.0.0", "sslmode=require&sslrootcert=CA", true},
		"verify-ca, other host":    {"relay", "0.0.0.0", "sslmode=verify-ca&sslrootcert=CA", true},
		"verify-full":              {"relay", "127.0.0.1", "sslmode=verify-full&sslrootcert=CA", true},
		"client certificate":       {"certified", "localhost", "sslmode=verify-full&sslrootcert=CA&sslcert=CERT&sslkey=KEY", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := p.env(t)
			base := strings.Replace(env.URL, "127.0.0.1", tt.host, 1)
			settings := testenv.Settings{"postgres.url": as(t, base, tt.role, p.files(tt.parameters))}
			relays(t, env, settings, func(r *testenv.Relay) { allEncrypted(t, env, r, tt.encrypted) }, "--init")
		})
	}
	t.Run("prefer, server without TLS", func(t *testing.T) {
		t.Parallel()
		env := p.plain(t)
		settings := testenv.Settings{"postgres.url": strings.Replace(env.URL, "disable", "prefer", 1)}
		relays(t, env, settings, func(r *testenv.Relay) { allEncrypted(t, env, r, false) }, "--init")
	})
	t.Run("unix socket", func(t *testing.T) {
		t.Parallel()
		env := p.env(t)
		database := strings.TrimSuffix(env.Prefix, ".")
		u, err := url.Parse(p.tls.SocketURL(database))
		if err != nil {
			t.Fatal(err)
		}
		settings := testenv.Settings{"postgres.url": as(t, u.String(), "relay", u.RawQuery)}
		relays(t, env, settings, nil, "--init")
	})
	t.Run("password file", func(t *testing.T) {
		t.Parallel()
		env := p.env(t)
		relays(t, env, testenv.Settings{
			"postgres.url":           as(t, env.URL, "relay:"+wrongPassword, p.files("sslmode=verify-full&sslrootcert=CA")),
			"postgres.password_file": secretFile(t, password),
		}, nil, "--init")
	})
}

// allEncrypted asks the server about the two ordinary connections and the replication connection, and the relay's log.
func allEncrypted(t *testing.T, env *testenv.Env, r *testenv.Relay, want bool) {
	t.Helper()
	conn := env.Conn()
	expect := fmt.Sprintf("client backend %[1]t, client backend %[1]t, walsender %[1]t", want)
	testenv.Until(t, patience, func(ctx context.Context) error { // what set up the database may still be leaving
		var got string
		err := conn.QueryRow(ctx, `SELECT coalesce(string_agg(backend_type || ' ' || ssl::text, ', ' ORDER BY backend_type), '')
			FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
			WHERE datname = current_database() AND application_name = 'cdc-relay'`).Scan(&got)
		if err == nil && got != expect {
			err = fmt.Errorf("encrypted: %s, want %s", got, expect)
		}
		return err
	})
	r.WaitOutput(fmt.Sprintf(`"encrypted":%t`, want), patience)
}

// refuses is about what must not connect. None of it heals by waiting.
func (p *postgres) refuses(t *testing.T) {
	t.Parallel()
	const tlsNext = "sslrootcert"
	tests := map[string]struct {
		env                    func(*testing.T) *testenv.Env
		role, host, parameters string
		code                   int
		says, next             string
	}{
		"disable, server wants TLS":        {p.env, "tlsonly", "127.0.0.1", "sslmode=disable", 77, "rejects connection", "pg_hba.conf"},
		"require, server without TLS":      {p.plain, "relay", "127.0.0.1", "sslmode=require", 78, "server refused TLS", "ssl = on"},
		"verify-full, server without TLS":  {p.plain, "relay", "127.0.0.1", "sslmode=verify-full&sslrootcert=CA", 78, "server refused TLS", "ssl = on"},
		"require, wrong authority":         {p.env, "relay", "127.0.0.1", "sslmode=require&sslrootcert=OTHERCA", 78, "unknown authority", tlsNext},
		"verify-ca, wrong authority":       {p.env, "relay", "127.0.0.1", "sslmode=verify-ca&sslrootcert=OTHERCA", 78, "unknown authority", tlsNext},
		"verify-full, wrong authority":     {p.env, "relay", "127.0.0.1", "sslmode=verify-full&sslrootcert=OTHERCA", 78, "unknown authority", tlsNext},
		"verify-full, system's":            {p.env, "relay", "127.0.0.1", "sslmode=verify-full", 78, "unknown authority", tlsNext},
		"verify-full, wrong host":          {p.env, "relay", "0.0.0.0", "sslmode=verify-full&sslrootcert=CA", 78, "0.0.0.0", "host name"},
		"unknown mode":                     {p.env, "relay", "127.0.0.1", "sslmode=strict", 78, "sslmode is invalid", "correct sslmode"},
		"authority file missing":           {p.env, "relay", "127.0.0.1", "sslmode=verify-ca&sslrootcert=/nowhere/ca.crt", 78, "/nowhere/ca.crt", "sslmode"},
		"no client certificate":            {p.env, "certified", "127.0.0.1", "sslmode=require", 77, "requires a valid client certificate", "sslcert"},
		"client certificate of an unknown": {p.env, "certified", "127.0.0.1", "sslmode=require&sslcert=OTHERCERT&sslkey=OTHERKEY", 77, "unknown certificate authority", "sslcert"},
		"wrong password":                   {p.env, "relay:" + wrongPassword, "127.0.0.1", "sslmode=require", 77, "password authentication failed", "postgres.password_file"},
		"unknown role":                     {p.env, "mallory", "127.0.0.1", "sslmode=require", 77, "password authentication failed", "postgres.password_file"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := tt.env(t)
			base := strings.Replace(env.URL, "127.0.0.1", tt.host, 1)
			settings := testenv.Settings{"postgres.url": as(t, base, tt.role, p.files(tt.parameters))}
			exits(t, env, settings, tt.code, tt.says, tt.next)
		})
	}
	t.Run("wrong password in the file", func(t *testing.T) {
		t.Parallel()
		env := p.env(t)
		exits(t, env, testenv.Settings{
			"postgres.url":           as(t, env.URL, "relay", "sslmode=require"),
			"postgres.password_file": secretFile(t, wrongPassword),
		}, 77, "password authentication failed", "postgres.password_file")
	})
}
