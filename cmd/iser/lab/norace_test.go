//go:build !race

package lab

const (
	underRace    = false
	defaultSeeds = 5
)
