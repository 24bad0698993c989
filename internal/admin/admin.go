// Package admin is the HTTP side of the relay: liveness, readiness and
// metrics over the relay's own snapshot. It asks neither Postgres nor Kafka
// anything, so a probe is cheap and tells what the relay knows. It serves no
// payload, no record key and no secret.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cdc-relay/cdc-relay/internal/relay"
)

// Config of the HTTP server.
type Config struct {
	// Listen is the address, host:port. Port 0 picks a free one.
	Listen string
}

// Source is what the server tells about.
type Source interface {
	// Status returns a snapshot; safe for concurrent use.
	Status() relay.Status
	// Alive reports whether the relay's own loops make progress. It does not
	// depend on Postgres or Kafka.
	Alive() bool
}

// Server serves /livez (also /healthz), /readyz and /metrics.
type Server struct {
	listener net.Listener
	http     *http.Server
	log      *slog.Logger
}

// Listen binds the address at once, so that one in use is an error at start
// and not a line in the log. Serving begins with Run.
func Listen(cfg Config, source Source, metrics prometheus.Gatherer, log *slog.Logger) (*Server, error) {
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for http on %s (http.listen): %w", cfg.Listen, err)
	}
	return &Server{
		listener: listener,
		log:      log,
		http: &http.Server{
			Handler:           Handler(source, metrics),
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       time.Minute,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}, nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends, then lets requests that are under way finish for
// at most a second.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve http: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.http.Shutdown(stop); err != nil {
		_ = s.http.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

// Handler routes the endpoints.
func Handler(source Source, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	live := func(w http.ResponseWriter, _ *http.Request) {
		if !source.Alive() {
			answer(w, http.StatusServiceUnavailable, "the main loop makes no progress\n")
			return
		}
		answer(w, http.StatusOK, "ok\n")
	}
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /healthz", live)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ready(w, source.Status(), r.URL.Query().Has("verbose"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	return mux
}

// ready answers with the role when ready, else with every reason on a line of
// its own. The status code is for machines, the text for people.
func ready(w http.ResponseWriter, s relay.Status, verbose bool) {
	code := http.StatusOK
	var b strings.Builder
	if s.Ready() {
		fmt.Fprintf(&b, "ok: %s\n", s.Role)
	} else {
		code = http.StatusServiceUnavailable
		for _, p := range s.Problems {
			fmt.Fprintf(&b, "not ready: %s\n", p)
		}
	}
	if s.Holder != "" {
		fmt.Fprintf(&b, "slot %s is held by %s\n", s.Slot, s.Holder)
	}
	if verbose {
		details(&b, s)
	}
	answer(w, code, b.String())
}

func details(w io.Writer, s relay.Status) {
	fmt.Fprintf(w, "role: %s since %s\n", s.Role, s.Since.UTC().Format(time.RFC3339))
	fmt.Fprintf(w, "slot: %s\n", s.Slot)
	fmt.Fprintf(w, "received: %s\nconfirmed: %s\n", s.Received, s.Confirmed)
	fmt.Fprintf(w, "transactions: %d\nrows: %d\n", s.Transactions, s.Rows)
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}
