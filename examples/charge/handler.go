package charge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Table is what the consumer writes down, in the transaction of the inbox.
const Table = `CREATE TABLE charge (
	order_id  text   PRIMARY KEY,
	cents     bigint NOT NULL,
	charge_id text   NOT NULL
)`

// Consumer is its name: part of the key, so it must not change while messages may still
// come again.
const Consumer = "charge"

// Handler returns the handler of messages whose value is a [Request]: it has the service
// at url charge, and writes the charge down. Give client a timeout; the transaction is
// open meanwhile.
func Handler(client *http.Client, url string) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, m *inbox.Message) error {
		var request Request
		if err := json.Unmarshal(m.Value, &request); err != nil {
			// The cause is left out: it quotes the value, which is no business of a log.
			return inbox.Permanent(fmt.Errorf("the value is no charge request"))
		}
		answer, err := send(ctx, client, url, inbox.IdempotencyKey(Consumer, m.ID), request)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO charge (order_id, cents, charge_id) VALUES ($1, $2, $3)", request.Order, request.Cents, answer.ID)
		return err
	}
}

// send makes the request. What it answers decides whether trying again helps.
func send(ctx context.Context, client *http.Client, url, key string, request Request) (Answer, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return Answer{}, inbox.Permanent(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, inbox.Permanent(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	response, err := client.Do(r)
	if err != nil {
		return Answer{}, fmt.Errorf("charge: %w", err) // whether it has charged is unknown: the key makes the next try safe
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		return Answer{}, inbox.RetryAfter(fmt.Errorf("charge: the service answers %d", code), pause(response))
	case code >= 500:
		return Answer{}, fmt.Errorf("charge: the service answers %d", code)
	case code != http.StatusOK:
		return Answer{}, inbox.Permanent(fmt.Errorf("charge: the service answers %d", code))
	}
	var answer Answer
	if err := json.NewDecoder(io.LimitReader(response.Body, maxRequest)).Decode(&answer); err != nil {
		return Answer{}, fmt.Errorf("charge: read the answer: %w", err)
	}
	return answer, nil
}

// pause reads how long the service wants to be left alone.
func pause(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 1 {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second
}
