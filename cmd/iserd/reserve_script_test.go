package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/goiser/goiser/iscsi/tcp"
	"github.com/goiser/goiser/scsi"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptKey is the reservation key of the scripts.
const scriptKey = "\x01\x23\x45\x67\x89\xab\xcd\xef"

// scriptCommand runs one command on LUN 0 in a session of its own. It is tried again once after a unit
// attention: every session begins with one.
func scriptCommand(ts *testscript.TestScript, args []string, c initiator.Command) initiator.Result {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	s, err := initiator.Open(ctx, &tcp.Dialer{}, args[0], args[1], initiator.Options{InitiatorName: "iqn.2026-01.example:script"})
	ts.Check(err)
	r, err := s.Do(ctx, c)
	ts.Check(err)
	if scsi.Status(r.Status) == scsi.CheckCondition {
		r, err = s.Do(ctx, c)
		ts.Check(err)
	}
	ts.Check(s.Close())
	return r
}

// register ADDR IQN registers a key with APTPL.
func register(ts *testscript.TestScript, neg bool, args []string) {
	list := append(append(make([]byte, 8), scriptKey...), 0, 0, 0, 0, 0x01, 0, 0, 0)
	r := scriptCommand(ts, args, initiator.Command{CDB: []byte{0x5f, 0x06, 0, 0, 0, 0, 0, 0, 24, 0}, Out: list})
	if good := scsi.Status(r.Status) == scsi.Good; good == neg {
		ts.Fatalf("REGISTER with APTPL: status %02x", r.Status)
	}
}

// registered ADDR IQN sees just that key.
func registered(ts *testscript.TestScript, neg bool, args []string) {
	keys := make([]byte, 64)
	scriptCommand(ts, args, initiator.Command{CDB: []byte{0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0}, In: keys})
	if want := append([]byte{0, 0, 0, 0, 0, 0, 0, 8}, scriptKey...); !bytes.Equal(keys[:16], want) {
		ts.Fatalf("READ KEYS: % x", keys[:16])
	}
}

// damage DIR changes a digit of the key in every file.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	files, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*.json"))
	ts.Check(err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		ts.Check(err)
		ts.Check(os.WriteFile(name, bytes.Replace(b, []byte("89abcdef"), []byte("89abcdee"), 1), 0o600))
	}
}
