package inboxtests

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/examples/charge"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/inbox/inboxtest"
)

// The example of an effect that no transaction takes back.
func TestChargedOnceThoughTheRequestIsMadeAgain(t *testing.T) {
	r := newRunnerRig(t)
	r.Exec(charge.Table)
	service := charge.NewService()
	var requests atomic.Int64
	var status atomic.Int64 // answered instead, when it is not 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		requests.Add(1)
		if code := int(status.Load()); code != 0 {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(code)
			return
		}
		service.ServeHTTP(w, request)
	}))
	defer server.Close()
	client := &http.Client{Timeout: runnerPatience}
	c := inboxtest.New(t, r.pool, charge.Handler(client, server.URL), inboxtest.WithConsumer(charge.Consumer))

	order := func(id string) *inbox.Message {
		return inboxtest.Message("orders", id, fmt.Appendf(nil, `{"order":%q,"cents":500}`, id))
	}
	m := order("1")
	c.CrashBeforeCommit(m)
	if n := r.Text("SELECT count(*) FROM charge"); n != "0" {
		t.Errorf("%s rows before the commit, want none", n)
	}
	c.CrashBeforeCommit(m)
	c.DeliverConcurrently(5, m)
	c.DeliverTwice(m)
	c.RequireProcessedOnce(m, "SELECT count(*) FROM charge WHERE order_id = '1' AND charge_id = 'charge-1'")
	if n := requests.Load(); n < 3 {
		t.Errorf("%d requests, want one for each crash and one more", n)
	}
	if charges := service.Charges(); len(charges) != 1 {
		t.Errorf("charges %v, want one", charges)
	}

	// What the service answers decides what becomes of the message.
	status.Store(http.StatusServiceUnavailable)
	busy := order("2")
	if got := c.Deliver(busy); got.Outcome != inbox.Retry || got.After != 7*time.Second {
		t.Errorf("a busy service: %v after %v, want retry after the 7s that it asks for", got.Outcome, got.After)
	}
	status.Store(http.StatusInternalServerError)
	if got := c.Deliver(busy); got.Outcome != inbox.Retry {
		t.Errorf("a broken service: %v, want retry", got.Outcome)
	}
	status.Store(0)
	c.DeliverTwice(busy)
	c.RequireProcessedOnce(busy, "SELECT count(*) FROM charge WHERE order_id = '2'")
	refused := order("3")
	status.Store(http.StatusPaymentRequired)
	if got := c.Deliver(refused); got.Outcome != inbox.DeadLettered {
		t.Errorf("a refused request: %v, want a dead letter", got.Outcome)
	}
	if got := c.Deliver(inboxtest.Message("orders", "4", []byte("not json"))); got.Outcome != inbox.DeadLettered {
		t.Errorf("a value that is no request: %v, want a dead letter", got.Outcome)
	}
}
