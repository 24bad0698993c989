// Package charge shows an effect outside the database: a consumer that charges a card
// through an HTTP service, once for each order.
//
// The transaction of the inbox cannot take a request back. When the process dies between
// the request and the commit, the message comes again and the handler sends the request
// again. What makes that one charge is the key that comes with it: it is made from the
// message, so it is the same each time ([inbox.IdempotencyKey]), and the service answers
// a key that it has seen with the answer that it gave then.
package charge

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Request is what to charge.
type Request struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// Answer is the charge that was made.
type Answer struct {
	ID string `json:"id"`
}

// Service stands for the payment provider: POST with the header Idempotency-Key. It
// remembers keys for as long as it runs; a real one keeps them longer than a message can
// be delivered again, and next to the charge. It is safe for concurrent use.
type Service struct {
	mu      sync.Mutex
	seen    map[string]charged
	charges []Request
}

type charged struct {
	request [sha256.Size]byte
	answer  Answer
}

// NewService returns a service that has charged nothing.
func NewService() *Service { return &Service{seen: make(map[string]charged)} }

// maxRequest bounds what is read of a request, in bytes.
const maxRequest = 1 << 16

// ServeHTTP charges once for each key. A key that comes with another request is refused
// with 422: that is a mistake of the client, and no repeat.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if r.Method != http.MethodPost || key == "" {
		http.Error(w, "want POST with an Idempotency-Key", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	}
	var request Request
	if err := json.Unmarshal(body, &request); err != nil || request.Order == "" || request.Cents <= 0 {
		http.Error(w, "want an order and cents", http.StatusBadRequest)
		return
	}
	answer, err := s.charge(key, sha256.Sum256(body), request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone asks again
}

func (s *Service) charge(key string, sum [sha256.Size]byte, request Request) (Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, ok := s.seen[key]; ok {
		if before.request != sum {
			return Answer{}, fmt.Errorf("the key was used for another request")
		}
		return before.answer, nil
	}
	s.charges = append(s.charges, request)
	answer := Answer{ID: fmt.Sprintf("charge-%d", len(s.charges))}
	s.seen[key] = charged{request: sum, answer: answer}
	return answer, nil
}

// Charges returns what was charged, in order.
func (s *Service) Charges() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.charges...)
}
