//go:build race

package iser_test

const raceEnabled = true
