package main

import (
	"fmt"
	"sync"
	"time"
)

// plainInterval is how often a step that has no news shows that it goes on, where there is no terminal.
const plainInterval = 5 * time.Second

// waiting shows that a step of the set-up goes on: on a terminal as one line that is drawn anew, elsewhere as a line
// whenever there is news, and every few seconds when there is none.
type waiting struct {
	screen *screen
	name   string
	began  time.Time
	quit   chan struct{}
	done   chan struct{}

	interval time.Duration
	ticker   *time.Ticker

	mu   sync.Mutex
	line string // the latest news
}

func (s *screen) waiting(name string, began time.Time) *waiting {
	w := &waiting{
		screen: s, name: name, began: began, quit: make(chan struct{}), done: make(chan struct{}),
		interval: plainInterval,
	}
	if s.terminal {
		w.interval = frameInterval
	}
	w.ticker = time.NewTicker(w.interval)
	go w.run()
	return w
}

func (w *waiting) run() {
	defer close(w.done)
	defer w.ticker.Stop()
	for {
		select {
		case <-w.ticker.C:
			w.mu.Lock()
			w.draw()
			w.mu.Unlock()
		case <-w.quit:
			return
		}
	}
}

// say shows news.
func (w *waiting) say(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line = line
	w.draw()
	w.ticker.Reset(w.interval)
}

func (w *waiting) draw() {
	text := fmt.Sprintf("  … %-13s %-50s %6.1f s", w.name, w.line, time.Since(w.began).Seconds())
	if w.screen.terminal {
		fmt.Fprintf(w.screen.out, "\r%s\x1b[K", text)
		return
	}
	fmt.Fprintln(w.screen.out, text)
}

// stop ends the showing and leaves an empty line to write on.
func (w *waiting) stop() {
	close(w.quit)
	<-w.done
	if w.screen.terminal {
		fmt.Fprint(w.screen.out, "\r\x1b[K")
	}
}
