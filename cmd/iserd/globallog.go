package main

import "github.com/sirupsen/logrus"

// adoptGlobalLog has logrus's global logger, to which gotgt's plug-ins write, write where and as ours does.
func adoptGlobalLog(log *logrus.Logger) {
	std := logrus.StandardLogger()
	std.SetOutput(log.Out)
	std.SetFormatter(log.Formatter)
	std.SetLevel(log.GetLevel())
}
