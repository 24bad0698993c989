package pipeline_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// untilTrue polls a query until it gives true.
func untilTrue(t *testing.T, env *testenv.Env, sql string) {
	t.Helper()
	conn := env.Conn()
	testenv.Until(t, patience, func(ctx context.Context) error {
		var ok bool
		if err := conn.QueryRow(ctx, sql).Scan(&ok); err != nil {
			return err
		}
		if !ok {
			return errors.New("not true yet: " + sql)
		}
		return nil
	})
}
