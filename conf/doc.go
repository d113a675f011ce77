// Package conf is the target daemon's configuration: one YAML schema, read and checked as a whole. It
// opens nothing but files of secrets, and starts nothing.
//
//	c, err := conf.Load("/etc/iserd/iserd.yaml")
//
// What is wrong is told with file, line, column and the lines around it, all mistakes at once. The
// schema, with its defaults, stands in docs/iserd.yaml.
package conf
