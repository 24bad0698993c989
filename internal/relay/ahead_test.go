package relay

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// Of many replays in one transaction the letters are read together, and each is looked
// at all the same: one that is not waiting any more is not sent, nor one that has been
// replayed again since.
func TestManyReplays(t *testing.T) {
	t.Parallel()
	kafka := newBrokers()
	r, box := newKeepingRelay(t, kafka, io.Discard)
	const letters = 12
	for i := range letters {
		letter := waiting(1)
		letter.Position.Index = uint32(i)
		id := fmt.Sprintf("id-%02d", i+1)
		letter.MessageID, letter.Headers = []byte(id), []deadletter.Header{{Name: "id", Value: []byte(id)}}
		switch i + 1 {
		case 5:
			refusedAgain(letter)
		case 7:
			letter.Replays = 2
		}
		box.write(letter)
	}
	s, server := begun(t, r)
	running(t, s)
	server.begin(0x2000)
	var sent []string
	for id := 1; id <= letters; id++ {
		server.logical(pglogrepl.LSN(0x1f00+id), 1, deadletter.ReplayPrefix, fmt.Sprintf("%d 1", id))
		if id != 5 && id != 7 {
			sent = append(sent, fmt.Sprintf("id-%02d", id))
		}
	}
	server.commit(0x2000, 0x2030)
	var got []string
	for form := regexp.MustCompile(`id-\d\d`); len(got) < len(sent); {
		select {
		case batch := <-kafka.arrived:
			got = append(got, form.FindAllString(batch, -1)...)
			kafka.acknowledge()
		case <-time.After(10 * time.Second):
			t.Fatalf("sent %v, want %v", got, sent)
		}
	}
	if !slices.Equal(got, sent) {
		t.Errorf("sent %v, want %v", got, sent)
	}
	server.keepalive(0x2100)
	server.waitFlushed(t, 0x2100)
	// The first; the second, and all behind it; the two that are not as they should be, each with those behind it.
	box.set(func() {
		if box.asked > 5 {
			t.Errorf("the store was asked %d times for letters", box.asked)
		}
	})
}
