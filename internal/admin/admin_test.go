package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a relay in a fixed state.
type source struct {
	status relay.Status
	dead   bool
}

func (s source) Status() relay.Status { return s.status }
func (s source) Alive() bool          { return !s.dead }

func TestAnswers(t *testing.T) {
	t.Parallel()
	leader := relay.Status{Role: relay.RoleLeader, Slot: "orders"}
	standby := relay.Status{Role: relay.RoleStandby, Slot: "orders", Holder: "process 7 (cdc-relay) from 10.0.0.1"}
	halted := relay.Status{Role: relay.RoleLeader, Problems: []string{"halt: table public.outbox has no column id", "kafka does not answer"}}
	for _, c := range []struct {
		name   string
		source source
		path   string
		status int
		has    []string
	}{
		{"ready", source{status: leader}, "/readyz", 200, []string{"ok: leader"}},
		{"standby names the holder", source{status: standby}, "/readyz", 200, []string{"ok: standby", "slot orders is held by process 7"}},
		{"not ready gives every reason", source{status: halted}, "/readyz", 503, []string{"not ready: halt: table public.outbox", "not ready: kafka does not"}},
		{"details on request", source{status: leader}, "/readyz?verbose", 200, []string{"role: leader", "confirmed: 0/0"}},
		{"alive whatever the servers do", source{status: halted}, "/livez", 200, []string{"ok"}},
		{"alive under its other name", source{}, "/healthz", 200, []string{"ok"}},
		{"stuck", source{dead: true}, "/livez", 503, []string{"no progress"}},
		{"metrics", source{}, "/metrics", 200, []string{"a_metric 1"}},
		{"nothing else", source{}, "/", 404, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			metrics := prometheus.NewRegistry()
			metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "a_metric"}, func() float64 { return 1 }))
			answer := httptest.NewRecorder()
			Handler(c.source, metrics).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, c.path, nil))
			if answer.Code != c.status {
				t.Errorf("status %d, want %d", answer.Code, c.status)
			}
			for _, text := range c.has {
				if !strings.Contains(answer.Body.String(), text) {
					t.Errorf("%q is not in the answer:\n%s", text, answer.Body)
				}
			}
		})
	}
}

func TestOnlyGet(t *testing.T) {
	t.Parallel()
	answer := httptest.NewRecorder()
	Handler(source{}, prometheus.NewRegistry()).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/readyz", nil))
	if answer.Code != http.StatusMethodNotAllowed {
		t.Errorf("status %d, want 405", answer.Code)
	}
}

// The server answers while it runs, ends with its context, and an address in use is an error at once.
func TestServer(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	s, err := Listen(Config{Listen: "127.0.0.1:0"}, source{}, prometheus.NewRegistry(), log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Config{Listen: s.Addr()}, source{}, prometheus.NewRegistry(), log); err == nil || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("a second server on the address: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + s.Addr() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("status %d", answer.StatusCode)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ends with %v", err)
	}
	if conn, err := net.Dial("tcp", s.Addr()); err == nil {
		_ = conn.Close()
		t.Error("still listens after the end")
	}
}
