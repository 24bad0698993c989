package charge_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-relay/cdc-relay/examples/charge"
)

func TestServiceChargesOncePerKey(t *testing.T) {
	service := charge.NewService()
	post := func(key, body string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const body = `{"order":"1","cents":500}`
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if code, answer := post("a", body); code != http.StatusOK || !strings.Contains(answer, "charge-1") {
				t.Errorf("answer %d %s, want 200 and the first charge", code, answer)
			}
		})
	}
	wg.Wait()
	if n := len(service.Charges()); n != 1 {
		t.Errorf("%d charges for one key, want 1", n)
	}
	if code, _ := post("b", body); code != http.StatusOK || len(service.Charges()) != 2 {
		t.Errorf("another key: %d, %d charges, want 200 and 2", code, len(service.Charges()))
	}
	if code, _ := post("a", `{"order":"2","cents":500}`); code != http.StatusUnprocessableEntity {
		t.Errorf("a key with another request: %d, want 422", code)
	}
	for _, bad := range []string{"", "not json", `{"order":"1"}`} {
		if code, _ := post("c", bad); code != http.StatusBadRequest {
			t.Errorf("a request without content: %d, want 400", code)
		}
	}
	if code, _ := post("", body); code != http.StatusBadRequest {
		t.Errorf("a request without key: %d, want 400", code)
	}
	if n := len(service.Charges()); n != 2 {
		t.Errorf("%d charges at the end, want 2", n)
	}
}
