package localstack

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cdc-relay/cdc-relay/integration/process"
)

// kafkaVersion is the version of the jars that kafka-jars.xml names.
const kafkaVersion = "4.3.1"

//go:embed kafka-jars.xml
var kafkaJars []byte

// ErrNoJava means that real Kafka cannot be run here.
var ErrNoJava = errors.New("java or mvn not found: install a Java runtime (17 or newer) and Maven to test against real Kafka")

// HaveJava returns ErrNoJava unless Java and Maven are there.
func HaveJava() error {
	for _, name := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(name); err != nil {
			return ErrNoJava
		}
	}
	return nil
}

// FetchKafka returns a directory with Kafka's jars in lib and the files of a formatted log directory in formatted, and
// has Maven download the jars first if they are not in the cache. Several processes may call it at once.
func FetchKafka(ctx context.Context, progress Progress) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "kafka-"+kafkaVersion)
	if complete(dir) {
		return dir, nil
	}
	if err := HaveJava(); err != nil {
		return "", err
	}
	err = fetchOnce(ctx, dir, progress, "fetching Kafka "+kafkaVersion, func(staging string) (string, error) {
		return unpackKafka(ctx, filepath.Join(staging, "kafka"))
	})
	if err != nil {
		return "", fmt.Errorf("fetch Kafka %s: %w", kafkaVersion, err)
	}
	return dir, nil
}

func unpackKafka(ctx context.Context, dir string) (string, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	pom := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(pom, kafkaJars, 0o644); err != nil {
		return "", err
	}
	err := process.Run(ctx, process.Options{}, dir, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies",
		"-DoutputDirectory="+filepath.Join(dir, "lib"))
	if err != nil {
		return "", err
	}
	// Formatting costs a start of the JVM and always gives the same files but for the ids in meta.properties. So it is
	// done once, and every broker gets a copy with ids of its own.
	properties := filepath.Join(dir, "format.properties")
	text := render(map[string]string{
		"process.roles": "controller", "node.id": "1", "controller.quorum.voters": "1@127.0.0.1:1",
		"listeners": "CONTROLLER://127.0.0.1:1", "controller.listener.names": "CONTROLLER",
		"log.dirs": filepath.Join(dir, "formatted"),
	})
	if err := os.WriteFile(properties, text, 0o644); err != nil {
		return "", err
	}
	err = process.Run(ctx, process.Options{}, dir, "java", "-cp", filepath.Join(dir, "lib", "*"), "kafka.tools.StorageTool",
		"format", "-t", randomUUID(), "-c", properties)
	if err != nil {
		return "", err
	}
	return dir, nil
}
