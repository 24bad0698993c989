package kafkaadmin

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/integration/testenv"
)

// Grant allows the user an operation on a topic.
func (a *Admin) Grant(user, topic string, operation kmsg.ACLOperation) {
	a.t.Helper()
	a.grant(user, kmsg.ACLResourceTypeTopic, topic, operation)
}

// GrantID allows the user to write to a transactional id.
func (a *Admin) GrantID(user, transactionalID string) {
	a.t.Helper()
	a.grant(user, kmsg.ACLResourceTypeTransactionalId, transactionalID, kmsg.ACLOperationWrite)
}

func (a *Admin) grant(user string, kind kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) {
	a.t.Helper()
	request := kmsg.NewPtrCreateACLsRequest()
	acl := kmsg.NewCreateACLsRequestCreation()
	acl.ResourceType, acl.ResourceName, acl.ResourcePatternType = kind, name, kmsg.ACLResourcePatternTypeLiteral
	acl.Principal, acl.Host = "User:"+user, "*"
	acl.Operation, acl.PermissionType = operation, kmsg.ACLPermissionTypeAllow
	request.Creations = append(request.Creations, acl)
	response, err := request.RequestWith(a.context(), a.client)
	a.try("grant", err, 0, nil)
	a.try("grant", nil, response.Results[0].ErrorCode, response.Results[0].ErrorMessage)
}

// Revoke takes back what [Admin.Grant] gave.
func (a *Admin) Revoke(user, topic string, operation kmsg.ACLOperation) {
	a.t.Helper()
	request := kmsg.NewPtrDeleteACLsRequest()
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName = kmsg.ACLResourceTypeTopic, new(topic)
	filter.ResourcePatternType, filter.Principal = kmsg.ACLResourcePatternTypeLiteral, new("User:"+user)
	filter.Operation, filter.PermissionType = operation, kmsg.ACLPermissionTypeAllow
	request.Filters = append(request.Filters, filter)
	response, err := request.RequestWith(a.context(), a.client)
	a.try("revoke", err, 0, nil)
	a.try("revoke", nil, response.Results[0].ErrorCode, response.Results[0].ErrorMessage)
	if len(response.Results[0].MatchingACLs) == 0 {
		a.t.Fatal("nothing to revoke")
	}
}

// ProducerQuota limits what each client may produce at each broker; 0 ends the limit.
func (a *Admin) ProducerQuota(bytesPerSecond float64) {
	a.t.Helper()
	entity := kmsg.NewAlterClientQuotasRequestEntryEntity()
	entity.Type = "client-id" // Without a name: the default of all.
	op := kmsg.NewAlterClientQuotasRequestEntryOp()
	op.Key, op.Value, op.Remove = "producer_byte_rate", bytesPerSecond, bytesPerSecond == 0
	entry := kmsg.NewAlterClientQuotasRequestEntry()
	entry.Entity, entry.Ops = append(entry.Entity, entity), append(entry.Ops, op)
	request := kmsg.NewPtrAlterClientQuotasRequest()
	request.Entries = append(request.Entries, entry)
	response, err := request.RequestWith(a.context(), a.client)
	a.try("set quota", err, 0, nil)
	a.try("set quota", nil, response.Entries[0].ErrorCode, response.Entries[0].ErrorMessage)
}

// Fence raises the epoch of a transactional id, as a producer does that begins to use it.
func (a *Admin) Fence(transactionalID string) {
	a.t.Helper()
	request := kmsg.NewPtrInitProducerIDRequest()
	request.TransactionalID, request.TransactionTimeoutMillis = new(transactionalID), 60_000
	request.ProducerID, request.ProducerEpoch = -1, -1
	testenv.Until(a.t, patience, func(ctx context.Context) error {
		response, err := request.RequestWith(ctx, a.client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(response.ErrorCode)
	})
}
