package publish

// PartitionOf places a key, for tests that need one in each partition.
func PartitionOf(key []byte, partitions int) int { return partitionOf(murmur2(key), partitions) }
