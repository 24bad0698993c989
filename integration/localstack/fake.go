package localstack

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Fake is a broker inside this process. It keeps everything in memory, and has neither the timing nor the failures of a
// real one.
type Fake struct {
	// Cluster scripts the broker's answers.
	Cluster *kfake.Cluster
}

// StartFake starts a cluster of so many brokers on 127.0.0.1. Topics are not created on use. The caller closes it.
func StartFake(brokers int, more ...kfake.Opt) (*Fake, error) {
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(brokers), kfake.DefaultNumPartitions(1)}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("start in-process broker: %w", err)
	}
	return &Fake{Cluster: cluster}, nil
}

// Addrs returns the address of every broker.
func (f *Fake) Addrs() []string { return f.Cluster.ListenAddrs() }

// Close ends the cluster.
func (f *Fake) Close() error {
	f.Cluster.Close()
	return nil
}
