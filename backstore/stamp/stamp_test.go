package stamp_test

import (
	"bytes"
	"testing"

	"github.com/goiser/goiser/backstore/stamp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var id = stamp.ID{Seed: 7, Sector: 81920, Generation: 3}

// at is id's stamp of another sector, generation or seed.
func at(seed, sector, generation uint64) []byte {
	p := make([]byte, stamp.SectorSize)
	stamp.Fill(p, stamp.ID{Seed: seed, Sector: sector, Generation: generation})
	return p
}

func poisoned(n int) []byte {
	p := make([]byte, n)
	stamp.Poison(p)
	return p
}

func splice(head, tail []byte, n int) []byte {
	return append(append([]byte{}, head[:n]...), tail[n:]...)
}

func TestCheckAcceptsWhatFillMakes(t *testing.T) {
	p := make([]byte, 64*stamp.SectorSize)
	stamp.Fill(p, id)
	var c stamp.Checker
	assert.Nil(t, c.Check(p, id))
}

func TestEveryWrongByteIsFound(t *testing.T) {
	var c stamp.Checker
	for i := range stamp.SectorSize {
		p := at(7, 81920, 3)
		p[i] ^= 0x10
		m := c.Check(p, id)
		require.NotNil(t, m, "byte %d", i)
		assert.Equal(t, i, m.First)
		assert.Equal(t, 1, m.Differ)
	}
}

func TestMismatchIsExplained(t *testing.T) {
	good := at(7, 81920, 3)
	flip := at(7, 81920, 3)
	flip[100] ^= 4
	junk := make([]byte, stamp.SectorSize)
	for i := range junk {
		junk[i] = byte(i*7 + 1)
	}
	rows := []struct {
		name string
		got  []byte
		kind stamp.Kind
		rest stamp.Kind
		word string
	}{
		{"poison", poisoned(stamp.SectorSize), stamp.Unwritten, "", "had not landed"},
		{"zeros", make([]byte, stamp.SectorSize), stamp.Zeros, "", "zeros"},
		{"older generation", at(7, 81920, 2), stamp.Stale, "", "generation 2"},
		{"newer generation", at(7, 81920, 4), stamp.Newer, "", "generation 4"},
		{"another sector", at(7, 81912, 3), stamp.Misplaced, "", "sector 81912"},
		{"another seed", at(8, 81920, 3), stamp.OtherWriter, "", "seed 8"},
		{"one bit", flip, stamp.BitFlip, "", "byte 100"},
		{"torn with poison", splice(good, poisoned(stamp.SectorSize), 256), stamp.Torn, stamp.Unwritten, "up to 256"},
		{"torn after zeros", splice(make([]byte, stamp.SectorSize), good, 128), stamp.Torn, "", "zeros up to 128, then the right bytes"},
		{"torn after an older write", splice(at(7, 81920, 2), good, 64), stamp.Torn, "", "generation 2 (stale) up to 64, then the right bytes"},
		{"torn after poison", splice(poisoned(stamp.SectorSize), good, 504), stamp.Torn, "", "unwritten up to 504"},
		{"torn with junk", splice(good, junk, 256), stamp.Torn, stamp.Foreign, "up to 256"},
		{"torn with zeros", splice(good, make([]byte, stamp.SectorSize), 128), stamp.Torn, stamp.Zeros, "up to 128"},
		{"torn with an older write", splice(good, at(7, 81920, 1), 192), stamp.Torn, stamp.Stale, "up to 192"},
		{"torn with another sector", splice(good, at(7, 5, 3), 256), stamp.Torn, stamp.Misplaced, "up to 256, then sector 5"},
		{"torn after another writer", splice(at(9, 81920, 3), good, 256), stamp.Torn, "", "sector 81920 of seed 9 (other-writer) up to 256, then the right bytes"},
		{"junk", junk, stamp.Foreign, "", "foreign bytes"},
	}
	var c stamp.Checker
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			m := c.Check(r.got, id)
			require.NotNil(t, m)
			assert.Equal(t, r.kind, m.Kind, m)
			assert.Equal(t, r.rest, m.Rest, m)
			assert.Contains(t, m.String(), r.word)
			assert.Contains(t, m.String(), "sector 81920")
		})
	}
}

func TestFlippedBitsAreNamed(t *testing.T) {
	p := at(7, 81920, 3)
	p[100] ^= 0x84
	p[300] ^= 1
	var c stamp.Checker
	m := c.Check(p, id)
	require.NotNil(t, m)
	assert.Equal(t, stamp.BitFlip, m.Kind)
	assert.Equal(t, []int{802, 807, 2400}, m.Flipped)
	assert.Contains(t, m.String(), "bit 2 of byte 100, bit 7 of byte 100, bit 0 of byte 300")
}

func TestTornNamesTheGeneration(t *testing.T) {
	var c stamp.Checker
	late := id
	late.Generation = 1 << 30
	m := c.Check(splice(at(7, 81920, 1<<30), at(7, 81920, 5), 400), late)
	require.NotNil(t, m)
	assert.Equal(t, stamp.Stale, m.Rest, "long ago")
	assert.Equal(t, uint64(5), m.RestID.Generation)
	m = c.Check(splice(at(7, 81920, 5), at(7, 81920, 6), 128), late)
	require.NotNil(t, m)
	assert.Contains(t, m.String(), "generation 5 (stale) up to 128, then generation 6 (stale)")
	for n := 48; n <= stamp.SectorSize-8; n += 8 {
		m := c.Check(splice(at(7, 81920, 3), at(7, 81920, 1), n), id)
		require.NotNil(t, m)
		assert.Equal(t, stamp.Torn, m.Kind, n)
		assert.Equal(t, n, m.TornAt)
		assert.Equal(t, stamp.ID{Seed: 7, Sector: 81920, Generation: 1}, m.Found)
	}
}

func TestMixtureTellsTheGenerations(t *testing.T) {
	p := splice(splice(at(7, 81920, 3), at(7, 81920, 9), 128), at(7, 81920, 1), 500)
	gens, ok := stamp.Mixture(p, 7, 81920, nil)
	assert.True(t, ok)
	assert.ElementsMatch(t, []uint64{3, 9, 1}, gens)
	copy(p[24:40], at(7, 81920, 5)[24:40]) // a header can be all that is left of a write
	gens, ok = stamp.Mixture(p, 7, 81920, nil)
	assert.True(t, ok)
	assert.ElementsMatch(t, []uint64{3, 9, 1, 5}, gens)
	for i := range p {
		q := bytes.Clone(p)
		q[i] ^= 0x55
		if gens, ok := stamp.Mixture(q, 7, 81920, nil); ok {
			assert.NotSubset(t, []uint64{3, 9, 1, 5}, gens, "byte %d", i) // the header's generation is what it is
		}
	}
	_, ok = stamp.Mixture(at(7, 81921, 3), 7, 81920, nil)
	assert.False(t, ok)
}

func TestMixtureMeetsAtAnyByte(t *testing.T) {
	a, b := at(7, 81920, 3), at(7, 81920, 1<<20)
	for n := range stamp.SectorSize + 1 {
		gens, ok := stamp.Mixture(splice(a, b, n), 7, 81920, []uint64{3, 1 << 20, 77})
		require.True(t, ok, "up to byte %d", n)
		require.Subset(t, []uint64{3, 1 << 20}, gens)
	}
}

func TestCheckNamesTheRightSectorOfMany(t *testing.T) {
	p := make([]byte, 8*stamp.SectorSize)
	stamp.Fill(p, id)
	copy(p[5*stamp.SectorSize:], at(7, 1, 3))
	var c stamp.Checker
	m := c.Check(p, id)
	require.NotNil(t, m)
	assert.Equal(t, id.Sector+5, m.Want.Sector)
	assert.Equal(t, stamp.Misplaced, m.Kind)
}

func TestParseReadsTheStamp(t *testing.T) {
	var c stamp.Checker
	p := at(7, 81920, 3)
	got, ok, valid := c.Parse(p)
	assert.Equal(t, id, got)
	assert.True(t, ok && valid)
	p[511] ^= 1
	got, ok, valid = c.Parse(p)
	assert.Equal(t, id, got)
	assert.True(t, ok && !valid)
	_, ok, _ = c.Parse(poisoned(stamp.SectorSize))
	assert.False(t, ok)
}

func TestFillAndCheckDoNotAllocate(t *testing.T) {
	p := make([]byte, 4096)
	var c stamp.Checker
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		stamp.Fill(p, id)
		if _, _, valid := c.Parse(p[:stamp.SectorSize]); !valid || c.Check(p, id) != nil {
			t.Fatal("mismatch")
		}
	}))
}

func BenchmarkFill(b *testing.B) {
	p := make([]byte, 64<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		stamp.Fill(p, id)
	}
}

func BenchmarkCheck(b *testing.B) {
	p := make([]byte, 64<<10)
	stamp.Fill(p, id)
	var c stamp.Checker
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if c.Check(p, id) != nil {
			b.Fatal("mismatch")
		}
	}
}

func TestZerosAreExpectedLikeAnyGeneration(t *testing.T) {
	zeroed := id
	zeroed.Generation = stamp.Zeroed
	p := at(7, 81920, 3)
	stamp.Fill(p, zeroed)
	require.True(t, stamp.IsZeros(p))
	var c stamp.Checker
	require.Nil(t, c.Check(p, zeroed))
	for name, row := range map[string]struct {
		got  []byte
		kind stamp.Kind
		text string
	}{
		"not zeroed":    {at(7, 81920, 3), stamp.Stale, "expected zeros, found generation 3: an older write of this sector (lost zeroing)"},
		"flipped":       {splice(append(make([]byte, 99), 8), make([]byte, 512), 100), stamp.BitFlip, "bit 3 of byte 99"},
		"half zeroed":   {splice(at(7, 81920, 3), make([]byte, 512), 128), stamp.Torn, "generation 3 (stale) up to 128, then the right bytes"},
		"other half":    {splice(make([]byte, 512), at(7, 81920, 3), 128), stamp.Torn, "the right bytes up to 128, then generation 3 (stale)"},
		"misplaced":     {at(7, 5, 3), stamp.Misplaced, "sector 5 of generation 3"},
		"not there":     {poisoned(512), stamp.Unwritten, "had not landed"},
		"other writers": {at(8, 81920, 3), stamp.OtherWriter, "seed 8"},
	} {
		m := c.Check(row.got, zeroed)
		require.NotNil(t, m, name)
		assert.Equal(t, row.kind, m.Kind, name)
		assert.Contains(t, m.String(), row.text, name)
	}
	_, ok, valid := c.Parse(p)
	assert.False(t, ok || valid)
	p = at(7, 81920, 3)
	copy(p[24:], bytes.Repeat([]byte{0xff}, 8))
	_, ok, _ = c.Parse(p)
	assert.False(t, ok, "a header that claims to be of that generation is none")
}

func TestMixtureWithZeros(t *testing.T) {
	for n := range stamp.SectorSize + 1 {
		p := splice(at(7, 81920, 3), make([]byte, 512), n)
		gens, ok := stamp.Mixture(p, 7, 81920, []uint64{3, stamp.Zeroed})
		require.True(t, ok, "up to byte %d", n)
		require.Subset(t, []uint64{3, stamp.Zeroed}, gens)
	}
	_, ok := stamp.Mixture(splice(at(7, 81920, 3), make([]byte, 512), 128), 7, 81920, []uint64{3})
	assert.False(t, ok, "zeros that nobody wrote")
}
