package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// tableTime is how tables show a time, in UTC.
const tableTime = "2006-01-02 15:04:05Z"

func showTime(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format(tableTime)
}

// table prints rows in columns. Columns whose heading starts with > are flushed right.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(out io.Writer) {
	head := make([]string, len(t.head))
	width := make([]int, len(t.head))
	for i, h := range t.head {
		head[i] = strings.TrimPrefix(h, ">")
		width[i] = utf8.RuneCountInString(head[i])
		for _, row := range t.rows {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range append([][]string{head}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if strings.HasPrefix(t.head[i], ">") {
				line.WriteString(pad + cell + "  ")
			} else {
				line.WriteString(cell + pad + "  ")
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

// printable escapes whatever a terminal could take for more than text: whoever writes into the
// outbox table must not write on the operator's screen.
func printable(text string) string {
	if strings.IndexFunc(text, hostile) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case hostile(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

// hostile reports whether a character may not be printed as it stands: controls, and the invisible
// ones that change the direction or the width of text.
func hostile(r rune) bool { return !unicode.IsGraphic(r) }

// shorten cuts text for a column of a table.
func shorten(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-1]) + "…"
}

// plural counts things: "1 dead letter", "2 dead letters".
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.FormatInt(n, 10) + " " + thing + "s"
}

// jsonLetter is a dead letter as JSON. The fields are documented in the help of list; more may
// come, none goes or changes. Bytes that are no UTF-8 are in a field …_base64 instead.
type jsonLetter struct {
	ID              int64        `json:"id"`
	Slot            string       `json:"slot"`
	State           string       `json:"state"`
	Reason          string       `json:"reason"`
	Error           string       `json:"error"`
	Attempts        int          `json:"attempts"`
	FirstFailedAt   *time.Time   `json:"first_failed_at"`
	LastFailedAt    *time.Time   `json:"last_failed_at"`
	MayBePublished  bool         `json:"may_be_published"`
	Table           string       `json:"table"`
	MessageID       *string      `json:"message_id"`
	MessageIDBase64 string       `json:"message_id_base64,omitempty"`
	Type            string       `json:"type"`
	Topic           string       `json:"topic"`
	Key             *string      `json:"key"`
	KeyBase64       string       `json:"key_base64,omitempty"`
	Headers         []jsonHeader `json:"headers"`
	ValueBytes      *int64       `json:"value_bytes"`
	ValueKept       bool         `json:"value_kept"`
	Value           *string      `json:"value,omitempty"`
	ValueBase64     string       `json:"value_base64,omitempty"`
	RecordTime      *time.Time   `json:"record_time"`
	CommittedAt     *time.Time   `json:"committed_at"`
	CommitLSN       string       `json:"commit_lsn"`
	ChangeLSN       string       `json:"change_lsn"`
	Replays         int          `json:"replays"`
	ReplayTopic     string       `json:"replay_topic"`
	CreatedAt       *time.Time   `json:"created_at"`
	ChangedAt       *time.Time   `json:"changed_at"`
}

// jsonHeader is a record header; its value is there with --show-payload only.
type jsonHeader struct {
	Name        string  `json:"name"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 string  `json:"value_base64,omitempty"`
}

// toJSON brings a dead letter into the form of the documented JSON.
func toJSON(l *entry, payload bool) any {
	if l.inbox != nil {
		return inboxJSON(&l.Letter, l.inbox, payload)
	}
	return relayJSON(&l.Letter, payload)
}

func relayJSON(l *deadletter.Letter, payload bool) jsonLetter {
	out := jsonLetter{
		ID: l.ID, Slot: l.Slot, State: string(l.State), Reason: string(l.Reason), Error: l.Error,
		Attempts: l.Attempts, FirstFailedAt: jsonTime(l.FirstFailed), LastFailedAt: jsonTime(l.LastFailed),
		MayBePublished: l.MayBePublished, Table: l.Table, Type: l.Type, Topic: l.Topic,
		Headers: jsonHeaders(l.Headers, payload), ValueKept: l.ValueKept,
		RecordTime: jsonTime(l.RecordTime), CommittedAt: jsonTime(l.CommitTime),
		CommitLSN: l.Position.Commit.String(), ChangeLSN: l.Position.LSN.String(),
		Replays: l.Replays, ReplayTopic: l.ReplayTopic, CreatedAt: jsonTime(l.Created), ChangedAt: jsonTime(l.Changed),
	}
	out.MessageID, out.MessageIDBase64 = jsonText(l.MessageID)
	out.Key, out.KeyBase64 = jsonText(l.Key)
	if l.ValueBytes >= 0 {
		out.ValueBytes = &l.ValueBytes
	}
	if payload {
		out.Value, out.ValueBase64 = jsonText(l.Value)
	}
	return out
}

func jsonHeaders(headers []deadletter.Header, payload bool) []jsonHeader {
	out := make([]jsonHeader, len(headers))
	for i, h := range headers {
		out[i].Name = h.Name
		if payload {
			out[i].Value, out[i].ValueBase64 = jsonText(h.Value)
		}
	}
	return out
}

// jsonText gives bytes as text, or in base64 when they are none. Nil gives neither.
func jsonText(b []byte) (text *string, encoded string) {
	if b == nil {
		return nil, ""
	}
	if s := string(b); utf8.ValidString(s) {
		return &s, ""
	}
	return nil, base64.StdEncoding.EncodeToString(b)
}

func jsonTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// printJSON prints a value as one indented document.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// jsonArray prints a JSON array whose elements come one by one, an element a line.
type jsonArray struct {
	out   io.Writer
	begun bool
}

func (a *jsonArray) add(v any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	start := ",\n "
	if !a.begun {
		start = "[\n "
	}
	a.begun = true
	_, err := io.WriteString(a.out, start+strings.TrimSpace(b.String()))
	return err
}

func (a *jsonArray) end() error {
	end := "\n]\n"
	if !a.begun {
		end = "[]\n"
	}
	_, err := io.WriteString(a.out, end)
	return err
}
