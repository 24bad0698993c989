package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressPause is how often progress is told where it cannot be drawn.
const progressPause = 10 * time.Second

// progress tells on standard error how far a command is that takes a while: a bar on a terminal, a
// line from time to time elsewhere.
type progress struct {
	err         io.Writer
	verb        string // such as "replayed"
	total, done int64
	began, told time.Time
	bar         *progressbar.ProgressBar // nil where nothing can be drawn
}

func newProgress(stderr io.Writer, verb string, total int64) *progress {
	p := &progress{err: stderr, verb: verb, total: total, began: time.Now(), told: time.Now()}
	if isTerminal(stderr) {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(stderr),
			progressbar.OptionSetDescription(verb),
			progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("letters"),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetRenderBlankState(true),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// add tells that n more are done.
func (p *progress) add(n int64) {
	p.done += n
	if p.bar != nil {
		_ = p.bar.Add64(n) // a terminal that is gone cannot be told so
		return
	}
	if now := time.Now(); now.Sub(p.told) >= progressPause {
		p.told = now
		fmt.Fprintln(p.err, p.line(now))
	}
}

// line is the progress in words.
func (p *progress) line(now time.Time) string {
	line := fmt.Sprintf("%s %d of %d", p.verb, p.done, p.total)
	rate := float64(p.done) / now.Sub(p.began).Seconds()
	if rate <= 0 || p.done >= p.total {
		return line
	}
	left := time.Duration(float64(p.total-p.done) / rate * float64(time.Second))
	return fmt.Sprintf("%s, %.0f a second, %v left", line, rate, max(left, time.Second).Round(time.Second))
}

// end takes the bar away.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
