package verify

import (
	"math/bits"
	"math/rand/v2"
)

// A permutation is an order of the numbers below n that is not kept but computed: a Feistel network over the least
// even number of bits that holds them, walked until it comes back below n.
type permutation struct {
	n    uint64
	half uint // bits
	keys [4]uint64
}

// newPermutation makes the order of n numbers that a seed and a salt stand for.
func newPermutation(n int64, seed, salt uint64) permutation {
	rng := rand.New(rand.NewPCG(seed, salt))
	p := permutation{n: uint64(n), half: uint(bits.Len64(uint64(max(n-1, 1)))+1) / 2}
	for i := range p.keys {
		p.keys[i] = rng.Uint64()
	}
	return p
}

// at is the i-th number. The walk ends because the network is a bijection, and is short because at most three of
// four numbers that it goes over are n or more.
func (p *permutation) at(i int64) int64 {
	x := uint64(i)
	for {
		if x = p.round(x); x < p.n {
			return int64(x)
		}
	}
}

func (p *permutation) round(x uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	l, r := x>>p.half, x&mask
	for _, k := range p.keys {
		h := (r ^ k) * 0x9e3779b97f4a7c15
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		l, r = r, l^(h^h>>32)&mask
	}
	return l<<p.half | r
}
