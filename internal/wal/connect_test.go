package wal

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

func TestConnectPinsSettings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		c := s.config()
		c.URL += "&datestyle=German&TimeZone=Asia%2FTokyo&work_mem=64MB"
		conn, err := Connect(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		want := map[string]string{
			"user": "relay", "database": "shop", "replication": "database", "application_name": "cdc-relay",
			"wal_sender_timeout": "10000", "client_encoding": "UTF8", "datestyle": "ISO, MDY",
			"intervalstyle": "postgres", "timezone": "UTC", "extra_float_digits": "3", "bytea_output": "hex",
			"search_path": "pg_catalog", "work_mem": "64MB", "client_min_messages": "warning", "statement_timeout": "0",
		}
		if diff := cmp.Diff(want, s.startup); diff != "" {
			t.Errorf("startup parameters (-want +got):\n%s", diff)
		}
		if conn.PID() != 4711 {
			t.Errorf("PID: got %d", conn.PID())
		}
	})
}

func TestApplicationName(t *testing.T) {
	t.Parallel()
	c := Config{URL: "host=127.0.0.1 user=relay application_name=orders"}
	pc, err := c.parse()
	if err != nil {
		t.Fatal(err)
	}
	if got := pc.RuntimeParams["application_name"]; got != ApplicationName {
		t.Errorf("got application_name %q, want %q", got, ApplicationName)
	}
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	_, err := Connect(t.Context(), Config{Slot: "Cdc-Relay; DROP", WALSenderTimeout: time.Millisecond})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{`slot name "Cdc-Relay; DROP"`, "no publication is named", "wal_sender_timeout 1ms"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// Whatever is wrong with the connection string, its password stays out of the
// error.
func TestErrorsHoldNoPassword(t *testing.T) {
	t.Parallel()
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") }
	urls := map[string]string{
		"postgres://relay:hunter2@127.0.0.1:hunter2/shop":                 "invalid port",
		"postgres://relay:hun/ter2@127.0.0.1/shop":                        "database URL",
		"postgres://relay:hunter2@127.0.0.1/shop?sslmode=hunter2":         "sslmode",
		"postgres://relay:hunter2@127.0.0.1/shop?sslrootcert=/no/ca.pem":  "/no/ca.pem",
		"postgres://relay:hunter2@127.0.0.1/shop?connect_timeout=hunter2": "connect_timeout",
		"host=127.0.0.1 user=relay hunter2":                               "keyword/value",
		"host=127.0.0.1 user=relay password='hunter2":                     "keyword/value",
		"hunter2": "keyword/value",
		"postgres://relay:hunter2@127.0.0.1:5432,[::1]:5433/shop?sslmode=disable": "connect to 127.0.0.1:5432,[::1]:5433, database shop, as relay",
	}
	for url, want := range urls {
		_, err := Connect(t.Context(), Config{URL: url, Slot: "s", Publications: []string{"p"}, dial: refuse})
		switch {
		case err == nil:
			t.Errorf("%s: accepted", url)
		case strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "ter2"):
			t.Errorf("%s: the password is in: %v", url, err)
		case !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: got %v, want %q on one line", url, err, want)
		}
	}
}

func TestConnectErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*ServerError) bool{
		"28P01": (*ServerError).Denied,
		"42501": (*ServerError).Denied,
		"3D000": (*ServerError).DatabaseMissing,
		"57P03": (*ServerError).ShuttingDown,
	}
	for code, is := range tests {
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			go func() {
				b := pgproto3.NewBackend(server, server)
				if _, err := b.ReceiveStartupMessage(); err == nil {
					b.Send(serverSays("FATAL", code, "auth_failed", "no"))
					_ = b.Flush()
				}
				_ = server.Close()
			}()
			c := (&scripted{client: client}).config()
			_, err := Connect(t.Context(), c)
			var se *ServerError
			if !errors.As(err, &se) || !is(se) {
				t.Errorf("%s: got %#v", code, err)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "connect to 127.0.0.1:5432, database shop, as relay: no (SQLSTATE") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestIdentifySystem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.onQuery = func(string) []pgproto3.BackendMessage {
			field := func(n string) pgproto3.FieldDescription { return pgproto3.FieldDescription{Name: []byte(n)} }
			return []pgproto3.BackendMessage{
				&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{field("systemid"), field("timeline"), field("xlogpos"), field("dbname")}},
				&pgproto3.DataRow{Values: [][]byte{[]byte("7301"), []byte("2"), []byte("1/16B3740"), []byte("shop")}},
				&pgproto3.CommandComplete{CommandTag: []byte("IDENTIFY_SYSTEM")},
				&pgproto3.ReadyForQuery{TxStatus: 'I'},
			}
		}
		c := s.connect()
		defer c.Close()
		got, err := c.IdentifySystem(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(System{SystemID: "7301", Timeline: 2, WALEnd: 0x1016B3740, Database: "shop"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestStartCommand(t *testing.T) {
	t.Parallel()
	tests := []struct {
		publications []string
		version      int
		want         string
	}{
		{[]string{"cdc_relay"}, 180003, `(proto_version '1', publication_names '"cdc_relay"', messages 'true')`},
		{[]string{"cdc_relay"}, 130000, `(proto_version '1', publication_names '"cdc_relay"')`},
		{[]string{`We"ird,`, "it's", `a\b`}, 140000, `(proto_version '1', publication_names '"We""ird,","it''s","a\b"', messages 'true')`},
	}
	for _, tc := range tests {
		synctest.Test(t, func(t *testing.T) {
			s := newScripted(t)
			c := s.config()
			c.Publications = tc.publications
			conn, err := Connect(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			st, err := conn.Start(t.Context(), StartOptions{Confirmed: at(slotPosition), ServerVersion: tc.version})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			if err := conn.Close(); err != nil || st.PID() != 4711 {
				t.Errorf("Close of a connection that a stream owns: %v, PID %d", err, st.PID())
			}
			if got := s.queries[0]; got != "START_REPLICATION SLOT cdc_relay LOGICAL 0/0 "+tc.want {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  *pgproto3.ErrorResponse
		is   func(*ServerError) bool
	}{
		{"held by another", serverSays("ERROR", "55006", "ReplicationSlotAcquire", "slot is active for PID 1"), (*ServerError).SlotBusy},
		{"missing", serverSays("ERROR", "42704", "ReplicationSlotAcquire", "slot does not exist"), (*ServerError).SlotMissing},
		{"invalidated", serverSays("ERROR", "55000", "CreateDecodingContext", "can no longer get changes"), (*ServerError).SlotState},
		{"starting up", serverSays("FATAL", "57P03", "ProcessStartupPacket", "starting up"), (*ServerError).ShuttingDown},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScripted(t)
				s.onQuery = func(string) []pgproto3.BackendMessage {
					return []pgproto3.BackendMessage{tc.err, &pgproto3.ReadyForQuery{TxStatus: 'I'}}
				}
				_, err := s.connect().Start(t.Context(), StartOptions{Confirmed: at(slotPosition)})
				var se *ServerError
				if !errors.As(err, &se) || !tc.is(se) {
					t.Fatalf("got %#v", err)
				}
				if want := "start replication on slot cdc_relay: " + tc.err.Message; !strings.HasPrefix(err.Error(), want) {
					t.Errorf("got %v", err)
				}
				<-s.gone // the connection is closed
			})
		})
	}
}

// Where the slot stands is asked once it is ours, and nothing is reported without it.
func TestStartReadsThePositionWhenTheSlotIsHeld(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func() (pglogrepl.LSN, error){
		"known":       func() (pglogrepl.LSN, error) { return slotPosition + 8, nil },
		"unknown":     func() (pglogrepl.LSN, error) { return 0, nil },
		"cannot tell": func() (pglogrepl.LSN, error) { return slotPosition, io.ErrUnexpectedEOF },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScripted(t)
				asked := 0
				st, err := s.connect().Start(t.Context(), StartOptions{Confirmed: func(context.Context) (pglogrepl.LSN, error) {
					synctest.Wait()
					s.mu.Lock()
					defer s.mu.Unlock()
					if asked++; len(s.queries) != 1 || !strings.HasPrefix(s.queries[0], "START_REPLICATION") || len(s.statuses) > 0 {
						t.Errorf("asked after %q and %d status updates", s.queries, len(s.statuses))
					}
					return answer()
				}})
				if asked != 1 {
					t.Errorf("asked %d times", asked)
				}
				if name != "known" {
					if err == nil {
						t.Error("accepted")
					}
					<-s.gone // the connection is closed
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := s.last().flush; got != slotPosition+8 {
					t.Errorf("the first status update says %s", got)
				}
				_ = st.Close()
			})
		})
	}
}

// A server that does not answer is given up when the context ends.
func TestStartGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.onQuery = func(string) []pgproto3.BackendMessage { return nil }
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := s.connect().Start(ctx, StartOptions{Confirmed: at(slotPosition)})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		<-s.gone
	})
}
