package localstack

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// probeTopic has one partition for each broker, with its only replica there.
const probeTopic = "localstack-probe"

// waitReady waits until the broker answers ProbeKafka. An open port says little: a broker that has just started still
// refuses producer ids for a while.
func (b *Broker) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not ready after two minutes"))
	defer cancel()
	for {
		err := ProbeKafka(ctx, b.Addr(), b.id, len(b.kafka.brokers))
		if err == nil {
			return nil
		}
		b.mu.Lock()
		server := b.server
		b.mu.Unlock()
		if !server.Running() {
			return fmt.Errorf("start Kafka broker %d: %w: %s", b.id, server.Err(), logTail(b.LogPath()))
		}
		if cause := pause(ctx, 100*time.Millisecond); cause != nil {
			return fmt.Errorf("start Kafka broker %d: %w: %w: %s", b.id, cause, err, logTail(b.LogPath()))
		}
	}
}

// ProbeKafka asks once whether the broker at an address is ready: whether it takes a record, gives it back, and hands
// out a producer id. node is the broker's id, of 1 to nodes.
func ProbeKafka(ctx context.Context, addr string, node, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	partition := int32(node - 1)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addr),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{probeTopic: {partition: kgo.NewOffset().AtStart()}}),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	if err := createProbeTopic(ctx, client, nodes); err != nil {
		return err
	}
	request := kmsg.NewPtrInitProducerIDRequest()
	request.ProducerID, request.ProducerEpoch = -1, -1
	response, err := client.Broker(node).Request(ctx, request)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(response.(*kmsg.InitProducerIDResponse).ErrorCode); err != nil {
		return err
	}
	record := &kgo.Record{Topic: probeTopic, Partition: partition, Value: []byte("ready?")}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return err
	}
	return client.PollFetches(ctx).Err()
}

func createProbeTopic(ctx context.Context, client *kgo.Client, nodes int) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = probeTopic, -1, -1
	for i := range int32(nodes) {
		assignment := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		assignment.Partition, assignment.Replicas = i, []int32{i + 1}
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, assignment)
	}
	config := kmsg.NewCreateTopicsRequestTopicConfig()
	config.Name, config.Value = "min.insync.replicas", new("1")
	topic.Configs = append(topic.Configs, config)
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, topic := range response.Topics {
		err := kerr.ErrorForCode(topic.ErrorCode)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return err
		}
	}
	return nil
}

// createUsers stores the users' SCRAM credentials in the cluster. PLAIN finds its users in server.properties.
func (k *Kafka) createUsers(ctx context.Context) error {
	if len(k.cfg.Users) == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addrs()...))
	if err != nil {
		return err
	}
	defer client.Close()
	// One request a mechanism: a broker refuses one that names a user twice.
	for mechanism, sum := range map[int8]func() hash.Hash{1: sha256.New, 2: sha512.New} {
		if err := k.createScramUsers(ctx, client, mechanism, sum); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kafka) createScramUsers(ctx context.Context, client *kgo.Client, mechanism int8, sum func() hash.Hash) error {
	request := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	for _, name := range sortedKeys(k.cfg.Users) {
		const iterations = 4096
		salt := make([]byte, 16)
		_, _ = rand.Read(salt) // Never fails.
		salted, err := pbkdf2.Key(sum, k.cfg.Users[name], salt, iterations, sum().Size())
		if err != nil {
			return err
		}
		upsertion := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		upsertion.Name, upsertion.Mechanism, upsertion.Iterations = name, mechanism, iterations
		upsertion.Salt, upsertion.SaltedPassword = salt, salted
		request.Upsertions = append(request.Upsertions, upsertion)
	}
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("create Kafka users: %w", err)
	}
	for _, result := range response.Results {
		if err := kerr.ErrorForCode(result.ErrorCode); err != nil {
			return fmt.Errorf("create Kafka user %s: %w", result.User, err)
		}
	}
	return nil
}
