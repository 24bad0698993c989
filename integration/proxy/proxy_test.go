package proxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/integration/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo starts a server that sends back what it gets, and a proxy before it.
func echo(t *testing.T) *proxy.Proxy {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	p, err := proxy.New(listener.Addr().String)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		listener.Close()
		<-done
	})
	return p
}

func dial(t *testing.T, p *proxy.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a word and returns what comes back within the limit.
func ask(t *testing.T, conn net.Conn, word string, limit time.Duration) (string, error) {
	t.Helper()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	return answer(conn, len(word), limit)
}

func answer(conn net.Conn, n int, limit time.Duration) (string, error) {
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	buffer := make([]byte, n)
	_, err := io.ReadFull(conn, buffer)
	return string(buffer), err
}

func mustAnswer(t *testing.T, conn net.Conn) {
	t.Helper()
	if got, err := ask(t, conn, "hello", 5*time.Second); err != nil || got != "hello" {
		t.Fatalf("got %q, %v, want hello", got, err)
	}
}

func TestPassesOn(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	mustAnswer(t, conn)
	if got := p.Connections(); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}
}

func TestStallHoldsBackAndHealLetsPass(t *testing.T) {
	for _, direction := range []proxy.Direction{proxy.ToServer, proxy.ToClient, proxy.Both} {
		p := echo(t)
		conn := dial(t, p)
		mustAnswer(t, conn)
		p.Stall(direction)
		if _, err := ask(t, conn, "held", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("direction %d: got %v, want no answer", direction, err)
		}
		if _, err := ask(t, dial(t, p), "held", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("direction %d: got %v from a new connection, want no answer", direction, err)
		}
		p.Heal()
		if got, err := answer(conn, 4, 5*time.Second); err != nil || got != "held" {
			t.Fatalf("direction %d: got %q, %v, want what was held back", direction, got, err)
		}
	}
}

func TestCutResetsOldAndNew(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	mustAnswer(t, conn)
	p.Cut()
	if _, err := answer(conn, 1, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a reset", err)
	}
	fresh, err := net.Dial("tcp", p.Addr())
	if err == nil { // The reset may come that early.
		defer fresh.Close()
		_, err = ask(t, fresh, "hello", 5*time.Second)
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v from a new connection, want a reset", err)
	}
	p.Heal()
	mustAnswer(t, dial(t, p))
}

func TestResetBreaksStalledConnections(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	mustAnswer(t, conn)
	p.Stall(proxy.Both)
	p.Reset()
	if _, err := answer(conn, 1, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestDelay(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	mustAnswer(t, conn)
	p.Delay(proxy.Both, 50*time.Millisecond)
	began := time.Now()
	mustAnswer(t, conn)
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("there and back took %v, want 100 ms at least", took)
	}
}

func TestLimit(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	mustAnswer(t, conn)
	p.Limit(proxy.ToServer, 100_000)
	began := time.Now()
	if _, err := ask(t, conn, string(make([]byte, 20_000)), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 190*time.Millisecond || took > 5*time.Second {
		t.Errorf("20 kB at 100 kB/s took %v, want 200 ms", took)
	}
}

// A text that comes by stalls its direction before it passes; what came before has passed. Set again, the trap lets go of
// what it holds, and takes the next.
func TestStallAt(t *testing.T) {
	p := echo(t)
	conn := dial(t, p)
	for _, word := range []string{"first", "again"} {
		sprung := p.StallAt(proxy.ToServer, word)
		if word != "first" {
			if got, err := answer(conn, 7, 5*time.Second); got != "(first)" {
				t.Errorf("read %q, %v: what was held must pass", got, err)
			}
		}
		mustAnswer(t, conn)
		select {
		case <-sprung:
			t.Fatal("stalled without the text")
		default:
		}
		if _, err := io.WriteString(conn, "("+word+")"); err != nil {
			t.Fatal(err)
		}
		<-sprung
		if got, err := answer(conn, 1, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %q, %v: it must be held", got, err)
		}
	}
	p.Heal()
	if got, err := answer(conn, 7, 5*time.Second); got != "(again)" {
		t.Errorf("read %q, %v: what was held must pass", got, err)
	}
	mustAnswer(t, conn)
}
