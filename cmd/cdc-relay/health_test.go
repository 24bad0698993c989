package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("not ready: kafka does not answer\n"))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	listen := "CDC_RELAY_HTTP_LISTEN=" + strings.TrimPrefix(server.URL, "http://")

	for _, tt := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"health", "--live"}, exitOK, "ok\n", ""},
		{
			[]string{"health"},
			exitNo, "not ready: kafka does not answer\n",
			"cdc-relay: the relay says no: 503 Service Unavailable\nTry: see the reasons above and the relay's log\n",
		},
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), tt.args, strings.NewReader(""), &stdout, &stderr, []string{listen})
		if code != tt.code || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
			t.Errorf("%v: got code %d, output %q, errors %q", tt.args, code, stdout.String(), stderr.String())
		}
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:9640": "127.0.0.1:9640", ":9640": "localhost:9640", "0.0.0.0:9640": "localhost:9640",
		"[::]:9640": "localhost:9640", "[::1]:9640": "[::1]:9640", "relay.internal:80": "relay.internal:80",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("%s: got %s, want %s", listen, got, want)
		}
	}
}
