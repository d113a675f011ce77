//go:build !race

package roce_test

const underRace = false
