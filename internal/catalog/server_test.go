package catalog

import (
	"errors"
	"strings"
	"testing"
)

func goodServer() Server {
	return Server{Version: 180003, VersionText: "18.3", WALLevel: "logical", Database: "db", SystemID: "7", Timeline: 2, MaxSlots: 10, MaxSenders: 10}
}

func TestServerCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*Server)
		fault   string
		warning string
	}{
		"good":                 {change: func(*Server) {}},
		"oldest":               {change: func(s *Server) { s.Version, s.VersionText = 140019, "14.19" }},
		"too old":              {change: func(s *Server) { s.Version, s.VersionText = 130022, "13.22" }, fault: "PostgreSQL 13.22 is too old"},
		"newer":                {change: func(s *Server) { s.Version, s.VersionText = 190000, "19.0" }, warning: "newer than the newest"},
		"standby":              {change: func(s *Server) { s.InRecovery = true }, fault: "the server is a standby"},
		"wal_level":            {change: func(s *Server) { s.WALLevel = "replica" }, fault: "wal_level is replica"},
		"minor 14":             {change: func(s *Server) { s.Version, s.VersionText = 140018, "14.18" }, warning: "14.19"},
		"minor 15":             {change: func(s *Server) { s.Version, s.VersionText = 150014, "15.14" }, warning: "15.15"},
		"minor 16":             {change: func(s *Server) { s.Version, s.VersionText = 160009, "16.9" }, warning: "16.10"},
		"minor 17":             {change: func(s *Server) { s.Version, s.VersionText = 170005, "17.5" }, warning: "17.6"},
		"fixed 17":             {change: func(s *Server) { s.Version, s.VersionText = 170006, "17.6" }},
		"pooler":               {change: func(s *Server) { s.Pooled = true }, warning: "connect directly"},
		"no walsender left":    {change: func(s *Server) { s.Senders = 10 }, warning: "max_wal_senders"},
		"synchronous star":     {change: func(s *Server) { s.SynchronousStandbyNames = "*" }, warning: "every commit"},
		"synchronous any":      {change: func(s *Server) { s.SynchronousStandbyNames = "ANY 1 (a, *)" }, warning: "every commit"},
		"synchronous by name":  {change: func(s *Server) { s.SynchronousStandbyNames = `FIRST 2 (a,"CDC-relay")` }, warning: "every commit"},
		"synchronous to other": {change: func(s *Server) { s.SynchronousStandbyNames = `FIRST 1 (cdc-relay2, "other one")` }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := goodServer()
			c.change(&s)
			warnings, err := s.Check()
			checkFault(t, err, c.fault)
			checkWarnings(t, warnings, c.warning)
		})
	}
}

// checkFault wants a configuration error with the text and a next step, or none.
func checkFault(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("unexpected fault: %v", err)
		}
		return
	}
	var e *CheckError
	if !errors.As(err, &e) || !strings.Contains(err.Error(), want) || e.Next == "" || e.Class != Configuration {
		t.Errorf("fault %v, want a configuration error with %q and a next step", err, want)
	}
}

// checkWarnings wants one warning with the text, or none.
func checkWarnings(t *testing.T, got []Warning, want string) {
	t.Helper()
	if want == "" {
		if len(got) > 0 {
			t.Errorf("unexpected warnings: %v", got)
		}
		return
	}
	if len(got) != 1 || !strings.Contains(got[0].String(), want) {
		t.Errorf("warnings %v, want one with %q", got, want)
	}
}
