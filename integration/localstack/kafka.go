package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// Kafka is a cluster of real Kafka brokers on 127.0.0.1.
type Kafka struct {
	cfg        KafkaConfig
	home       string
	dir        *runDir
	clusterID  string
	voters     string
	brokers    []*Broker
	controller *Broker // nil when the brokers are controllers

	closeOnce sync.Once
	closeErr  error
}

// Broker is one process of a cluster. Its methods may be called from several goroutines; those that start and stop it
// wait for each other.
type Broker struct {
	id                 int
	broker, controller bool
	dir                string
	kafka              *Kafka
	ports              map[Listener]*Port

	mu     sync.Mutex // held while the process is started or stopped; guards server and paused
	server *process.Process
	paused bool
}

// StartKafka fetches Kafka's jars if need be, starts a cluster in a temporary directory, and returns when every broker
// has taken a record, given it back, and handed out a producer id. The caller closes it.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	cfg.Brokers = max(1, cfg.Brokers)
	if cfg.Heap == "" {
		cfg.Heap = "400m"
	}
	if n := len(cfg.Advertise); n != 0 && n != cfg.Brokers {
		return nil, fmt.Errorf("start Kafka: %d advertised addresses for %d brokers", n, cfg.Brokers)
	}
	home, err := FetchKafka(ctx, cfg.Progress)
	if err != nil {
		return nil, err
	}
	dir, err := newRunDir("kafka")
	if err != nil {
		return nil, err
	}
	k := &Kafka{cfg: cfg, home: home, dir: dir, clusterID: randomUUID()}
	if err := errors.Join(k.plan(), k.copyTLS()); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	for _, n := range k.nodes() {
		if err := k.format(n); err != nil {
			return nil, errors.Join(fmt.Errorf("format Kafka node %d: %w", n.id, err), k.Close())
		}
	}
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// plan numbers the nodes and gives them their ports.
func (k *Kafka) plan() error {
	for id := 1; id <= k.cfg.Brokers; id++ {
		k.brokers = append(k.brokers, &Broker{id: id, broker: true, controller: !k.cfg.SeparateController})
	}
	if k.cfg.SeparateController {
		k.controller = &Broker{id: 1000, controller: true}
	}
	var voters []string
	for _, n := range k.nodes() {
		n.kafka, n.dir, n.ports = k, k.dir.join("node-"+strconv.Itoa(n.id)), map[Listener]*Port{}
		var listeners []Listener
		if n.broker {
			listeners = k.cfg.listeners()
		}
		if n.controller {
			listeners = append(listeners, controllerListener)
		}
		for _, name := range listeners {
			port, err := ReservePort()
			if err != nil {
				return err
			}
			n.ports[name] = port
		}
		if n.controller {
			voters = append(voters, strconv.Itoa(n.id)+"@"+n.ports[controllerListener].Addr())
		}
	}
	k.voters = strings.Join(voters, ",")
	return nil
}

// nodes returns all processes, the controller first.
func (k *Kafka) nodes() []*Broker {
	if k.controller == nil {
		return k.brokers
	}
	return append([]*Broker{k.controller}, k.brokers...)
}

// start starts all processes before it waits for any: a quorum needs more than one.
func (k *Kafka) start(ctx context.Context) error {
	for _, n := range k.nodes() {
		if err := n.launch(); err != nil {
			return err
		}
	}
	for _, b := range k.brokers {
		if err := b.waitReady(ctx); err != nil {
			return err
		}
	}
	return k.createUsers(ctx)
}

// Brokers returns the brokers; their node ids are 1, 2, 3, … in this order.
func (k *Kafka) Brokers() []*Broker { return k.brokers }

// Addrs returns the address of every broker at its plain listener.
func (k *Kafka) Addrs() []string { return k.AddrsOf(Plaintext) }

// AddrsOf returns the address of every broker at the named listener. For Proxied it is the broker's own address, not
// the advertised one. It returns nil when the cluster has no such listener.
func (k *Kafka) AddrsOf(name Listener) []string {
	var addrs []string
	for _, b := range k.brokers {
		if port := b.ports[name]; port != nil {
			addrs = append(addrs, port.Addr())
		}
	}
	return addrs
}

// Close kills all processes and removes their data. It may be called more than once.
func (k *Kafka) Close() error {
	k.closeOnce.Do(func() {
		var errs []error
		for _, n := range k.nodes() {
			errs = append(errs, n.Kill())
			for _, port := range n.ports {
				port.Release()
			}
		}
		k.closeErr = errors.Join(append(errs, k.dir.remove())...)
	})
	return k.closeErr
}

// ID returns the node id.
func (b *Broker) ID() int { return b.id }

// Addr returns the address of the plain listener; it stays the same when the broker restarts.
func (b *Broker) Addr() string { return b.ports[Plaintext].Addr() }

// PID returns the process id, or 0 when the broker is not running.
func (b *Broker) PID() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil || !b.server.Running() {
		return 0
	}
	return b.server.PID()
}

// LogPath returns the file that takes the broker's log.
func (b *Broker) LogPath() string { return b.join("kafka.log") }

func (b *Broker) join(name string) string { return filepath.Join(b.dir, name) }

// Start starts a stopped broker and returns when it is ready. It does nothing when the broker is running.
func (b *Broker) Start(ctx context.Context) error {
	if err := b.launch(); err != nil {
		return err
	}
	return b.waitReady(ctx)
}

func (b *Broker) launch() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil && b.server.Running() {
		return nil
	}
	logFile, err := os.OpenFile(b.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open Kafka log: %w", err)
	}
	defer logFile.Close()
	const logging = "-Dorg.slf4j.simpleLogger."
	args := []string{
		"-Xmx" + b.kafka.cfg.Heap, "-Djava.awt.headless=true", "-Djava.io.tmpdir=" + b.dir,
		logging + "showDateTime=true", logging + "dateTimeFormat=HH:mm:ss.SSS",
	}
	if !b.kafka.cfg.FullJIT {
		args = append(args, "-XX:TieredStopAtLevel=1")
	}
	args = append(args, "-cp", filepath.Join(b.kafka.home, "lib", "*"), "kafka.Kafka", b.join("server.properties"))
	cmd := exec.Command("java", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, logFile, logFile
	if b.server, err = process.Start(cmd, process.Options{}); err != nil {
		return err
	}
	b.paused = false
	return b.kafka.dir.noteProcess(b.server.PID())
}

// Stop asks the broker to hand over its partitions and end. When ctx ends before the broker does, it is killed and the
// error says so.
func (b *Broker) Stop(ctx context.Context) error { return b.end(ctx, syscall.SIGTERM) }

// Kill ends the broker without warning.
func (b *Broker) Kill() error { return b.end(context.Background(), syscall.SIGKILL) }

func (b *Broker) end(ctx context.Context, sig syscall.Signal) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil {
		return nil
	}
	if b.paused && sig != syscall.SIGKILL { // Else it might answer what waits for it, and then die.
		if err := b.server.Signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	b.paused = false
	return b.server.Stop(ctx, sig)
}

// Restart stops the broker and starts it again.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.Stop(ctx); err != nil {
		return err
	}
	return b.Start(ctx)
}

// Pause freezes the broker: its connections stay open and nothing is answered.
func (b *Broker) Pause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = true
	return b.server.Signal(syscall.SIGSTOP)
}

// Resume ends a Pause.
func (b *Broker) Resume() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = false
	return b.server.Signal(syscall.SIGCONT)
}
