package relay

import (
	"context"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// ahead are letters that were read before their messages have come. Who replays many
// at once would else stop the stream for as many questions, one after the other.
//
// They are of one transaction, so all of it can be seen once the first message has been
// looked up; and nobody but this relay changes a letter that is replayed, after it has
// sent it.
type ahead struct {
	commit  pglogrepl.LSN // of the transaction
	replays int           // of it so far
	letters map[int64]*deadletter.Letter
}

// enter notes that a message of a transaction has come, and forgets what was read for
// another one.
func (a *ahead) enter(commit pglogrepl.LSN) {
	if a.commit != commit {
		*a = ahead{commit: commit}
	}
	a.replays++
}

// take returns the letter of a message, nil if it has to be asked for.
func (a *ahead) take(id int64, count int) *deadletter.Letter {
	letter := a.letters[id]
	delete(a.letters, id)
	if letter == nil || letter.Replays != count || letter.State != deadletter.Replayed {
		return nil
	}
	return letter
}

// find is [Relay.find] for the message in hand. From the second replay of a transaction
// on it reads those that most likely follow, too.
func (d *dispatcher) find(ctx context.Context, id int64, count int) (letter *deadletter.Letter, end pglogrepl.LSN, err error) {
	r, a := d.s.r, &d.ahead
	a.enter(d.pos.Commit)
	if letter = a.take(id, count); letter != nil {
		return letter, 0, nil
	}
	err = d.s.letters.ask(ctx, func(ctx context.Context, st store) (err error) {
		letter, end, err = r.find(ctx, st, id, count)
		if err != nil || letter == nil || end != 0 || a.replays < 2 {
			return err
		}
		next, err := st.ahead(ctx, r.cfg.Spec.Slot, id+1, d.pos.LSN)
		a.letters = make(map[int64]*deadletter.Letter, len(next))
		for _, l := range next {
			a.letters[l.ID] = l
		}
		return err
	})
	return letter, end, err
}

func (t tableStore) ahead(ctx context.Context, slot string, id int64, replayed pglogrepl.LSN) ([]*deadletter.Letter, error) {
	return deadletter.Ahead(ctx, t.db, slot, id, replayed)
}
