//go:build race

package lab

const (
	underRace    = true
	defaultSeeds = 2 // which finds races rather than seeds
)
