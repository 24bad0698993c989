package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

func newHealth(a *app) *cobra.Command {
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a running relay whether it is ready",
		Long: `health asks the relay that listens at http.listen whether it is ready, for the health
checks of containers. It exits 0 when the answer is yes, 3 when it is no, and 69 when
there is no answer.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.load(config.Offline)
			if err != nil {
				return err
			}
			path := "/readyz"
			if live {
				path = "/livez"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return probe(ctx, cmd.OutOrStdout(), "http://"+reachable(c.HTTP.Listen)+path)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "ask whether it is alive instead")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}

// reachable turns an address to listen on into one to dial: an unspecified host stands for any of
// this machine's.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// probe prints the relay's answer and turns a no into an error.
func probe(ctx context.Context, out io.Writer, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask the relay: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return &exitError{
			fmt.Errorf("ask the relay: %w", err), exitUnreachable,
			"check that the relay runs and that http.listen is the same here as there",
		}
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	_ = response.Body.Close() // what was wanted has been read
	if err != nil {
		return &exitError{fmt.Errorf("read the relay's answer: %w", err), exitUnreachable, "ask again"}
	}
	fmt.Fprintln(out, strings.TrimSpace(string(answer)))
	if response.StatusCode != http.StatusOK {
		return &exitError{errors.New("the relay says no: " + response.Status), exitNo, "see the reasons above and the relay's log"}
	}
	return nil
}
