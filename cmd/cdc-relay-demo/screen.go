package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	frameInterval = 100 * time.Millisecond
	eventFrames   = 2  // on a terminal, every second frame adds an event
	plainFrames   = 10 // elsewhere, every tenth prints a line
	blockLines    = 10 // events and notes that stay visible
)

// frame is one moment of the live view.
type frame struct {
	committed int64
	delivered int64
	last      arrival // the newest event; without id when there is none
	p50, p99  time.Duration
}

// screen prints the demo: on a terminal with colour and a block that is drawn anew, elsewhere as plain lines. Its
// methods may be called from several goroutines.
type screen struct {
	out      io.Writer
	terminal bool
	colour   bool

	mu    sync.Mutex
	began time.Time // of the live view
	lines []string  // newest last
	shown string    // id of the event shown last
	drawn int       // height of the block on the terminal, 0 when there is none
}

// newScreen finds out whether out is a terminal. NO_COLOR is honoured.
func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	s.colour = s.terminal && os.Getenv("NO_COLOR") == ""
	return s
}

// The colours that the demo uses, as ANSI codes.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

func (s *screen) paint(colour, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s *screen) title(opts options) {
	what := fmt.Sprintf("%s events a second for %v", thousands(int64(opts.rate)), opts.duration)
	if opts.chaos {
		what += ", the relay and the consumers killed again and again"
	}
	fmt.Fprintf(s.out, "\n%s  %s\n\n", s.paint(bold, "cdc-relay demo"), what)
}

// step runs one part of the set-up and prints what it gave and how long it took.
func (s *screen) step(name string, work func(progress func(string)) (detail string, err error)) error {
	began := time.Now()
	wait := s.waiting(name, began)
	detail, err := work(wait.say)
	wait.stop()
	if err != nil {
		fmt.Fprintf(s.out, "  %s %s\n", s.paint(red, "✗"), name)
		return err
	}
	fmt.Fprintf(s.out, "  %s %-13s %-50s %8s\n", s.paint(green, "✓"), name, detail, short(time.Since(began)))
	return nil
}

// view is the live view at work.
type view struct {
	quit chan struct{}
	done chan struct{}
}

// follow shows frames until it is stopped.
func (s *screen) follow(next func() frame) *view {
	v := &view{quit: make(chan struct{}), done: make(chan struct{})}
	fmt.Fprintf(s.out, "\n%s\n", s.paint(dim, "  Orders and stock change, each with its event in one transaction. Some of what arrives:"))
	s.began = time.Now()
	go func() {
		defer close(v.done)
		ticker := time.NewTicker(frameInterval)
		defer ticker.Stop()
		for n := 1; ; n++ {
			select {
			case <-ticker.C:
				s.show(next(), n)
			case <-v.quit:
				s.show(next(), 0)
				return
			}
		}
	}()
	return v
}

// stop shows a last frame.
func (v *view) stop() {
	close(v.quit)
	<-v.done
}

// note shows something that happens beside the events.
func (s *screen) note(colour, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(s.paint(colour, fmt.Sprintf("%9s  ", s.elapsed())+fmt.Sprintf(format, args...)))
}

func (s *screen) elapsed() string { return fmt.Sprintf("%.1f s", time.Since(s.began).Seconds()) }

// add puts a line into the block, or prints it.
func (s *screen) add(line string) {
	if !s.terminal {
		fmt.Fprintln(s.out, line)
		return
	}
	s.lines = append(s.lines, line)
	s.lines = s.lines[max(0, len(s.lines)-blockLines):]
}

// show shows the n-th frame.
func (s *screen) show(f frame, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	every := eventFrames
	if !s.terminal {
		every = plainFrames
	}
	if n%every == 0 && f.last.id != "" && f.last.id != s.shown {
		s.shown = f.last.id
		s.add(s.event(f))
	}
	if s.terminal {
		s.redraw(f)
	}
}

func (s *screen) event(f frame) string {
	line := fmt.Sprintf("%9s  %-7s  version %-4d %-15s partition %d  %9s",
		s.elapsed(), f.last.key, f.last.version, f.last.kind, f.last.partition, short(f.last.latency))
	if s.terminal {
		return line
	}
	return fmt.Sprintf("%s  (%d committed, %d delivered)", line, f.committed, f.delivered)
}

// redraw draws the block over the one before. Wrapping is off meanwhile, or a narrow terminal would break the count of
// lines.
func (s *screen) redraw(f frame) {
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	b.WriteString("\x1b[?7l")
	for _, line := range s.lines {
		b.WriteString(line + "\x1b[K\n")
	}
	status := fmt.Sprintf("%9s  committed %s   delivered %s   p50 %s   p99 %s",
		s.elapsed(), thousands(f.committed), thousands(f.delivered), short(f.p50), short(f.p99))
	b.WriteString("\x1b[K\n" + s.paint(bold, status) + "\x1b[K\n\x1b[?7h")
	s.drawn = len(s.lines) + 2
	fmt.Fprint(s.out, b.String())
}

// short writes a duration with one decimal.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// thousands writes a number as in 12,345.
func thousands(n int64) string {
	digits := fmt.Sprint(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
