// Package proxy is a TCP proxy that spoils connections on purpose: it cuts, stalls, delays or slows them, in one
// direction or both. It knows nothing of the protocol that it carries.
package proxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is a way that bytes go, or both.
type Direction uint8

// The directions, as seen from the client.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Proxy passes connections to its own address on to a target. All methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	target   func() string
	stop     context.CancelFunc
	done     sync.WaitGroup

	toServer, toClient fault

	mu    sync.Mutex // guards what follows
	cut   bool
	pairs map[*pair]struct{}
}

// pair is a client's connection and the one to the server that belongs to it.
type pair struct {
	client, server net.Conn
	cancel         context.CancelFunc
}

// New listens on a free port of 127.0.0.1. target is asked for the address of the server at every new connection, so
// that a proxy can exist before its server does. The caller closes the proxy.
func New(target func() string) (*Proxy, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for proxy: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Proxy{listener: listener, target: target, stop: stop, pairs: map[*pair]struct{}{}}
	p.toServer.init()
	p.toClient.init()
	p.done.Go(func() { p.accept(ctx) })
	return p, nil
}

// Addr returns host and port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Connections returns the number of open connections.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Stall lets no byte pass any more, in connections old and new, and closes none: a black hole.
func (p *Proxy) Stall(d Direction) { p.change(d, func(s *spoil) { s.stalled = true }) }

// StallAt stalls a direction when a text comes that way, before it passes, and closes the channel that it returns. What a
// stall before has held back passes. The text is found if one write of the sender had it all.
func (p *Proxy) StallAt(d Direction, text string) <-chan struct{} {
	t := &trap{text: []byte(text), sprung: make(chan struct{})}
	p.change(d, func(s *spoil) { s.stalled, s.trap = false, t })
	return t.sprung
}

// Delay holds every byte back for that long.
func (p *Proxy) Delay(d Direction, by time.Duration) { p.change(d, func(s *spoil) { s.delay = by }) }

// Limit lets so many bytes per second pass in each connection; 0 means any number.
func (p *Proxy) Limit(d Direction, bytesPerSecond int) {
	p.change(d, func(s *spoil) { s.rate = bytesPerSecond })
}

// Reset breaks all open connections. New ones are served.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.reset()
	}
}

// Cut breaks all open connections, and every new one at once, until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.Reset()
}

// Heal ends every fault. What a stall has held back passes now.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.cut = false
	p.mu.Unlock()
	p.change(Both, func(s *spoil) { *s = spoil{} })
}

// Close breaks all connections, and returns when the proxy is gone. It may be called more than once.
func (p *Proxy) Close() error {
	p.stop()
	err := p.listener.Close()
	p.Cut()
	p.done.Wait()
	return err
}

func (p *Proxy) change(d Direction, by func(*spoil)) {
	if d&ToServer != 0 {
		p.toServer.change(by)
	}
	if d&ToClient != 0 {
		p.toClient.change(by)
	}
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // Closed.
		}
		p.done.Go(func() { p.serve(ctx, client) })
	}
}

func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", p.target())
	if err != nil {
		reset(client)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pair := &pair{client: client, server: server, cancel: cancel}
	if !p.add(pair) {
		pair.reset()
		return
	}
	var all sync.WaitGroup
	all.Go(func() { carry(ctx, &all, server, client, &p.toServer); cancel() })
	all.Go(func() { carry(ctx, &all, client, server, &p.toClient); cancel() })
	<-ctx.Done() // One side is at its end: so is the other.
	client.Close()
	server.Close()
	all.Wait()
	p.mu.Lock()
	delete(p.pairs, pair)
	p.mu.Unlock()
}

// add enters a pair, unless connections are cut.
func (p *Proxy) add(pair *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.pairs[pair] = struct{}{}
	return true
}

func (p *pair) reset() {
	reset(p.client)
	reset(p.server)
	p.cancel()
}

// reset closes a connection so that the peer reads an error, not an end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}
