// Package statedir keeps small states of a daemon as files of one directory, such as the persistent
// reservations of a logical unit. What Save has taken is there after a crash, a kill -9 or a power cut.
// It is no database: a state is read once, at the start, and written as a whole.
//
//	dir, err := statedir.Open("/var/lib/iserd")
//	err = dir.Save("3f2a", []byte(`{"n":1}`)) // durable when it returns
//	state, err := dir.Load("3f2a")
package statedir
