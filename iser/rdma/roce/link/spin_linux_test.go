package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpinningEndsWhereItIsOfNoUse(t *testing.T) {
	s := spinner{trust: spinTrust}
	require.False(t, s.begins(false), "nothing is expected")
	for range spinTrust {
		require.True(t, s.begins(true))
		s.ended(false)
	}
	for range 3 { // from now on a try now and then
		for range spinProbe - 1 {
			require.False(t, s.begins(true))
		}
		require.True(t, s.begins(true))
		s.ended(false)
	}
	for range spinProbe {
		_ = s.begins(true)
	}
	s.ended(true) // and when one is of use, it is trusted again
	for range spinTrust {
		require.True(t, s.begins(true))
		s.ended(false)
	}
	require.False(t, s.begins(true))
	alone := spinner{alone: true, trust: spinTrust}
	require.False(t, alone.begins(true), "others need the processor")
}
