// Package importer reads the configurations of other targets and makes ours of them: gotgt's config.json through gotgt's
// own types, stgt's targets.conf (targets.conf(5)) and LIO's saveconfig.json (saveconfig of targetcli). It opens nothing
// but what it is given and, of stgt, what that includes; stores are only looked at, to tell files from devices.
//
// What cannot be carried over is told, and never opens a target wider than it was: a target whose proof of identity or
// list of initiators is lost is disabled.
//
//	r, err := importer.STGT("/etc/tgt/targets.conf")
//	os.Stdout.Write(r.Config.Marshal())
//	for _, l := range r.Lost { fmt.Fprintln(os.Stderr, l) }
package importer
