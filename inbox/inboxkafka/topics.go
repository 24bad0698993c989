package inboxkafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// topicsInterval is how often a topic that does not exist is looked for, and how often
// the number of partitions is.
const topicsInterval = 5 * time.Second

// awaitTopics waits until a topic exists and returns those that do: the group's protocol
// would give nobody a partition while one is missing. It returns none when ctx has ended.
func awaitTopics(ctx context.Context, cfg *Config, client *kafka.Client, t *trouble) []string {
	for ctx.Err() == nil {
		found, err := findTopics(ctx, cfg, client)
		if ctx.Err() != nil {
			break
		}
		after := t.after(err)
		if len(found) > 0 {
			return found
		}
		pause(ctx, after)
	}
	return nil
}

// untilChanged returns when other topics than these exist, or ctx ends.
func untilChanged(ctx context.Context, cfg *Config, client *kafka.Client, topics []string) {
	missed := 0
	for {
		pause(ctx, topicsInterval)
		found, err := findTopics(ctx, cfg, client)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && found == nil: // nobody has answered
		case len(without(found, topics)) > 0:
			return
		case len(found) == len(topics):
			missed = 0
		default: // Once may be the answer of a broker that has just started.
			if missed++; missed == 2 {
				return
			}
		}
	}
}

// findTopics returns the topics that exist, and an error that names the others. nil: no
// answer.
func findTopics(ctx context.Context, cfg *Config, client *kafka.Client) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	answer, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: cfg.Topics})
	if err != nil {
		return nil, err
	}
	found, missing := []string{}, []string{}
	reason := error(kafka.UnknownTopicOrPartition)
	for _, topic := range answer.Topics {
		switch {
		case topic.Error == nil && len(topic.Partitions) > 0 || errors.Is(topic.Error, kafka.LeaderNotAvailable):
			found = append(found, topic.Name)
		case topic.Error != nil:
			reason = topic.Error
		}
	}
	for _, topic := range cfg.Topics {
		if !slices.Contains(found, topic) {
			missing = append(missing, topic)
		}
	}
	if len(missing) > 0 {
		return found, fmt.Errorf("topic %s: %w", strings.Join(missing, ", "), reason)
	}
	return found, nil
}

// without returns all that are not among others.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(others, s) })
}
