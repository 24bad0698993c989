package publish

import (
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/broker"
)

// action is what a lane does about an attempt.
type action uint8

const (
	// settle: the batch is acknowledged.
	settle action = iota
	// retry: the same bytes again, soon.
	retry
	// split: fewer rows, if there is more than one and the batch is decided. One
	// row alone is refused for good: it is a dead letter, or halts the lane. A batch that
	// is undecided is given up first, like find.
	split
	// refuse: all rows of a decided batch are refused for good, since their topic is.
	refuse
	// find: the same bytes would be refused again, though they may have been appended.
	// The batch is given up and searched for in its partition.
	find
	// depose: a higher epoch of the producer exists. Ours: like find. Else somebody
	// uses our id.
	depose
	// halt: somebody has to act. The same bytes again, every haltPause.
	halt
)

// rule is one line of the table of error codes.
type rule struct {
	action action
	// decided means that the answer proves that this attempt appended nothing and
	// never will.
	decided bool
	// refresh means that the cluster layout is likely out of date.
	refresh bool
	// free means that the attempt does not count against max_attempts: no broker was to
	// be asked.
	free bool
}

// ruleFor is the table of Kafka's error codes for produce requests. What is not
// listed halts, undecided: nothing is known about it. Only the codes that brokers
// return before they append are decided.
func ruleFor(code int) rule {
	switch kafka.Error(code) {
	case 0:
		return rule{action: settle, decided: true}

	// Decided, heals by itself.
	case kafka.UnknownTopicOrPartition: // 3: deleted, being created, or the layout is old.
		return rule{action: retry, decided: true, refresh: true, free: true}
	case kafka.NotLeaderForPartition: // 6: the leader has moved.
		return rule{action: retry, decided: true, refresh: true}
	case kafka.NotEnoughReplicas: // 19: fewer in-sync replicas than min.insync.replicas.
		return rule{action: retry, decided: true}

	// Decided, about the size or the contents of the batch.
	case kafka.MessageSizeTooLarge, // 10: larger than max.message.bytes.
		kafka.RecordListTooLarge, // 18: larger than a segment of the log.
		kafka.InvalidTimestamp,   // 32: too far from the broker's clock.
		kafka.InvalidRecord:      // 87: refused by validation, such as a null key on a compacted topic.
		return rule{action: split, decided: true}

	case kafka.InvalidTopic: // 17: such as a topic that only brokers write to.
		return rule{action: refuse, decided: true}

	// Decided, somebody has to act. A withdrawn permission is never the row's fault.
	case kafka.TopicAuthorizationFailed: // 29: no Write permission on the topic.
		return rule{action: halt, decided: true}
	}
	return undecidedRuleFor(code)
}

// undecidedRuleFor is [ruleFor] for codes that leave open whether the batch is in the partition.
func undecidedRuleFor(code int) rule {
	switch kafka.Error(code) {
	// Heals by itself: the batch may have been appended, or may still be.
	case kafka.InvalidMessage: // 2: damaged on the way (or an encoder bug).
		return rule{action: retry}
	case kafka.LeaderNotAvailable, // 5: an election is under way.
		kafka.ReplicaNotAvailable, // 9
		kafka.NetworkException,    // 13
		kafka.FencedLeaderEpoch,   // 74
		kafka.UnknownLeaderEpoch,  // 75
		kafka.OffsetNotAvailable,  // 78
		kafka.BrokerNotAvailable:  // 8
		return rule{action: retry, refresh: true}
	case kafka.RequestTimedOut, // 7: appended, but the replicas were too slow.
		kafka.NotEnoughReplicasAfterAppend, // 20: appended, then replicas were lost.
		kafka.GroupLoadInProgress,          // 14: the broker is starting.
		kafka.GroupCoordinatorNotAvailable, // 15
		kafka.NotCoordinatorForGroup,       // 16
		kafka.ConcurrentTransactions,       // 51
		kafka.KafkaStorageError,            // 56: a disk failed; another replica takes over.
		kafka.ThrottlingQuotaExceeded:      // 89
		return rule{action: retry}

	// To be repeated in vain: the broker does not know any more which
	// batches it has. What became of this one is in the partition.
	case kafka.OutOfOrderSequenceNumber, // 45: the broker has lost, or forgotten, the batches before it.
		kafka.DuplicateSequenceNumber, // 46: older than the batches the broker remembers.
		kafka.UnknownProducerId:       // 59: the broker has forgotten the producer.
		return rule{action: find}
	case kafka.InvalidProducerEpoch, // 47: a higher epoch is in the partition.
		kafka.ProducerFenced: // 90: the coordinator's word for it.
		return rule{action: depose}

	// Somebody has to act; listed for their meaning, same as unlisted.
	case kafka.ClusterAuthorizationFailed, // 31: no IdempotentWrite or Write permission.
		kafka.UnsupportedVersion,                 // 35
		kafka.InvalidRequest,                     // 42
		kafka.UnsupportedForMessageFormat,        // 43
		kafka.TransactionalIDAuthorizationFailed, // 53
		kafka.SASLAuthenticationFailed:           // 58: before the request; the credentials were changed.
		return rule{action: halt}
	}
	return rule{action: halt}
}

// outcome is an attempt, judged.
type outcome struct {
	rule
	// reason is the metric's label: an error code's name or a kind of failure.
	reason string
	// err is what to tell an operator.
	err error
	// unanswered is err when a broker was to be asked and gave no answer; unasked means
	// that none was to be asked.
	unanswered error
	unasked    bool
}

// noTopic is the reason of an attempt for which the cluster layout has no partition.
const noTopic = "no_topic"

// judge classifies the end of an attempt.
func judge(res broker.Produced, err error) outcome {
	if err == nil {
		return outcome{rule: ruleFor(res.Code), reason: codeName(res.Code), err: res.Err()}
	}
	out := outcome{rule: rule{action: retry}, err: err, unanswered: err, reason: broker.Reason(err)}
	if code := broker.Code(err); code != 0 {
		// From setting up the connection, such as refused credentials.
		out.rule = ruleFor(code)
		out.reason = codeName(code)
	}
	if out.reason == "no_leader" || out.reason == noTopic {
		out.unanswered, out.unasked = nil, true
	}
	out.free = out.free || out.reason == noTopic
	out.decided = !broker.MayHaveBeenWritten(err)
	out.refresh = out.decided || out.reason == "connection_closed" // Idle ones are likely gone, too.
	return out
}

// codeName is a code as a label: "not_leader_for_partition".
func codeName(code int) string {
	title := kafka.Error(code).Title()
	if title == "" {
		return "code_" + strconv.Itoa(code)
	}
	return strings.ReplaceAll(strings.ToLower(title), " ", "_")
}
