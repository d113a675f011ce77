package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/sirupsen/logrus"
)

// subsystems are the parts of the daemon whose log levels are their own.
var subsystems = [...]string{"config", "isns", "rdma", "target"}

// logLevels are the loggers of the subsystems. They write to one place.
type logLevels struct {
	loggers map[string]*logrus.Logger
}

// newLogLevels makes the loggers of `LEVEL[,subsystem=LEVEL]...`.
func newLogLevels(w io.Writer, levels string) (*logLevels, error) {
	l := &logLevels{loggers: map[string]*logrus.Logger{}}
	one := &lineWriter{w: w}
	for _, name := range subsystems {
		log := logrus.New()
		log.SetOutput(one)
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
		l.loggers[name] = log
	}
	set := admin.LogLevels{}
	for i, part := range strings.Split(levels, ",") {
		name, level, named := strings.Cut(part, "=")
		switch {
		case named:
			set[name] = level
		case i == 0:
			for _, name := range subsystems {
				set[name] = part
			}
		default:
			return nil, usagef("--log %q: want LEVEL[,SUBSYSTEM=LEVEL]...", levels)
		}
	}
	if err := l.set(set); err != nil {
		return nil, usagef("--log: %w", err)
	}
	return l, nil
}

// of is a subsystem's logger.
func (l *logLevels) of(name string) *logrus.Logger { return l.loggers[name] }

// addHook shows all lines, of level info and above at least, to a hook.
func (l *logLevels) addHook(h logrus.Hook) {
	for _, log := range l.loggers {
		log.AddHook(h)
	}
}

// levels are the levels in force.
func (l *logLevels) levels() admin.LogLevels {
	out := admin.LogLevels{}
	for name, log := range l.loggers {
		out[name] = log.GetLevel().String()
	}
	return out
}

// set changes levels, all of them or none.
func (l *logLevels) set(levels admin.LogLevels) error {
	parsed := map[*logrus.Logger]logrus.Level{}
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		log := l.loggers[name]
		if log == nil {
			return badRequest("log "+name, "no such subsystem", "there are "+strings.Join(subsystems[:], ", "))
		}
		level, err := logrus.ParseLevel(levels[name])
		if err != nil {
			return badRequest(fmt.Sprintf("log %s=%s", name, levels[name]), "no such level", "want error, warning, info or debug")
		}
		parsed[log] = level
	}
	for log, level := range parsed {
		log.SetLevel(level)
	}
	return nil
}

// A lineWriter lets loggers, each of which writes a line at a time, take turns.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
