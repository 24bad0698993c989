package relay

import (
	"context"
	"time"
)

const (
	// statsInterval is how often the dead letters are counted for the metrics.
	statsInterval = 15 * time.Second
	// purgeInterval is how often old dead letters are deleted; purgeBatch bounds one
	// statement, of which there is one a second as long as there are more. It is halved
	// where the letters are so large that a statement takes too long.
	purgeInterval = time.Hour
	purgeBatch    = 1000
)

// upkeep is what the watcher does about dead letters. That it cannot be done is no
// fault of the stream.
type upkeep struct {
	counted, purged time.Time
	batch           int // of the next purge, 0 for purgeBatch
	failing         bool
}

// round does what is due. There may be no letters.
func (u *upkeep) round(ctx context.Context, l *letters) {
	if l == nil || l.over.Err() != nil {
		return
	}
	r := l.s.r
	r.buried.rest(r.log)
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err := u.count(ctx, l)
	if err == nil {
		err = u.purge(ctx, l)
	}
	switch {
	case ctx.Err() != nil: // too slow, or the end
	case err == nil:
		u.failing = false
	case !u.failing:
		u.failing = true
		r.log.Warn("dead letters cannot be counted or deleted, trying again", "err", err)
	}
}

func (u *upkeep) count(ctx context.Context, l *letters) error {
	if time.Since(u.counted) < statsInterval {
		return nil
	}
	st, err := l.open(ctx)
	if err != nil {
		return err
	}
	u.counted = time.Now()
	stats, err := st.stats(ctx, l.s.r.cfg.Spec.Slot)
	l.s.r.metrics.waiting(stats)
	return err
}

func (u *upkeep) purge(ctx context.Context, l *letters) error {
	keep := l.s.r.cfg.DeadLetters.Retention
	if keep <= 0 || time.Since(u.purged) < purgeInterval {
		return nil
	}
	st, err := l.open(ctx)
	if err != nil {
		return err
	}
	if u.batch == 0 {
		u.batch = purgeBatch
	}
	now := time.Now()
	n, err := st.purge(ctx, l.s.r.cfg.Spec.Slot, now.Add(-keep), u.batch)
	switch {
	case ctx.Err() != nil && u.batch > 1 && l.over.Err() == nil:
		u.batch /= 2
	case err != nil || n < int64(u.batch):
		u.purged, u.batch = now, 0
	}
	return err
}
