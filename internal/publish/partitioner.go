package publish

// partitionOf places a hash as Java's default partitioner does:
// toPositive(murmur2(key)) % partitions.
func partitionOf(hash uint32, partitions int) int {
	return int(hash&0x7fffffff) % partitions
}

// placement is the bytes that decide the partition: the key, or the message id
// where the key is null. So the partition is a pure function of the record, which
// a replay depends on. Java clients place null keys at will.
func placement(r *Record) []byte {
	if r.Key == nil {
		return r.ID
	}
	return r.Key
}

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2: 32-bit MurmurHash2 with
// Kafka's seed.
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
