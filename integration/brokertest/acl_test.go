package brokertest

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/localstack"
)

// allow gives our user one permission on a resource, and so takes every other one, and those of other users.
func allow(t *testing.T, addrs []string, kind kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) {
	t.Helper()
	allowUser(t, addrs, "User:"+user, kind, name, operation)
}

func allowUser(t *testing.T, addrs []string, principal string, kind kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) {
	t.Helper()
	rule := kmsg.NewCreateACLsRequestCreation()
	rule.ResourceType, rule.ResourceName, rule.ResourcePatternType = kind, name, kmsg.ACLResourcePatternTypeLiteral
	rule.Principal, rule.Host, rule.Operation, rule.PermissionType = principal, "*", operation, kmsg.ACLPermissionTypeAllow
	req := kmsg.NewPtrCreateACLsRequest()
	req.Creations = append(req.Creations, rule)
	res, err := req.RequestWith(t.Context(), newClient(t, addrs))
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(res.Results[0].ErrorCode); err != nil {
		t.Fatal(err)
	}
}

// fake is an in-process cluster of the test's own.
func fake(t *testing.T) *localstack.Fake {
	t.Helper()
	f, err := localstack.StartFake(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// soon bounds what takes a broker milliseconds.
const soon = 10 * time.Second
