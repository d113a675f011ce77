//go:build ceph

package gotgt

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Without a cluster the plug-in is there, and says that it cannot.
func TestCephPluginIsThere(t *testing.T) {
	_, err := Open("ceph-rbd", "pool/image", 0)
	assert.Error(t, err)
	assert.NotContains(t, err.Error(), "is not found")
	t.Log(err)
}
