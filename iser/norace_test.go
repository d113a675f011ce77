//go:build !race

package iser

const RaceEnabled = false
