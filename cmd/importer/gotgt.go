package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi"
	"github.com/gostor/gotgt/pkg/config"
)

// Gotgt reads a config.json of gotgt. An error says where in the file JSON is wrong: gotgt would not start either.
func Gotgt(path string, o Options) (*Result, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, err
	}
	im := newImporter()
	var c config.Config
	if err := decode(path, b, &c); err != nil {
		return nil, err
	}
	im.unknown(path, b, new(config.Config))
	devices := make(map[uint64]config.BackendStorage)
	for _, s := range c.Storages {
		if _, twice := devices[s.DeviceID]; twice {
			im.lostf("storage %d: a second one of this deviceID is left out", s.DeviceID)
			continue
		}
		devices[s.DeviceID] = s
	}
	portals := make(map[uint64]conf.Portal)
	for _, p := range c.ISCSIPortals {
		a, err := conf.ParseAddress(p.Portal)
		if err != nil {
			im.lostf("portal %d is left out: %v", p.ID, err)
			continue
		}
		portals[uint64(p.ID)] = conf.Portal{Listen: a, Provider: conf.ProviderTCP} // gotgt has nothing else
	}
	for _, name := range slices.Sorted(maps.Keys(c.ISCSITargets)) {
		im.gotgtTarget(name, c.ISCSITargets[name], devices, portals)
	}
	return im.finish(o)
}

// decode reads JSON into v. An error says in which line it is wrong.
func decode(path string, b []byte, v any) error {
	err := json.Unmarshal(b, v)
	if at, ok := errors.AsType[*json.SyntaxError](err); ok {
		line := 1 + bytes.Count(b[:min(int(at.Offset), len(b))], []byte("\n"))
		return fmt.Errorf("%s:%d: not JSON: %w", path, line, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// unknown tells of a key that v does not have: gotgt does not heed it either.
func (im *importer) unknown(path string, b []byte, v any) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		im.lostf("%s: %s", path, strings.TrimPrefix(err.Error(), "json: "))
	}
}

func (im *importer) gotgtTarget(name string, g config.ISCSITarget, devices map[uint64]config.BackendStorage, portals map[uint64]conf.Portal) {
	t := conf.Target{Name: iscsi.Name(name), Negotiate: conf.DefaultNegotiate()}
	for _, key := range slices.Sorted(maps.Keys(g.LUNs)) {
		number, err := strconv.ParseUint(key, 10, 14)
		if err != nil {
			im.lostf("target %s: LUN %q is left out: not a number that can be", name, key)
			continue
		}
		s, ok := devices[g.LUNs[key]]
		if !ok {
			im.lostf("target %s: LUN %s is left out: there is no storage %d", name, key, g.LUNs[key])
			continue
		}
		im.gotgtLUN(&t, int(number), s)
	}
	var served []conf.Portal
	seen := make(map[uint64]bool)
	for _, tag := range slices.Sorted(maps.Keys(g.TPGTs)) {
		for _, id := range g.TPGTs[tag] {
			p, ok := portals[id]
			if !ok {
				im.lostf("target %s: there is no portal %d", name, id)
			} else if !seen[id] {
				seen[id] = true
				served = append(served, p)
			}
		}
	}
	if len(served) == 0 {
		im.close(&t, "no portal of it could be carried over")
	}
	im.addTarget(t, served)
}

// gotgtBlock is the block size where the file has none, as a shift.
const gotgtBlock = 9

func (im *importer) gotgtLUN(t *conf.Target, number int, s config.BackendStorage) {
	where := fmt.Sprintf("storage %d", s.DeviceID)
	plugin, path, _ := strings.Cut(s.Path, ":")
	l := conf.LUN{Number: number, BlockSize: 1 << gotgtBlock}
	if s.BlockShift > 0 && s.BlockShift < 32 {
		l.BlockSize = 1 << s.BlockShift
	}
	if !s.Online {
		im.lostf("target %s: LUN %d is left out: %s is not online", t.Name, number, where)
		return
	}
	switch plugin {
	case "file":
		l.Store = im.pathStore(where, path, backstore.Options{})
	case "null":
		l.Store = im.store(where, where, "null", "null", backstore.Options{})
	case "ceph-rbd":
		l.Store = im.store(where, s.Path, path, "gotgt", backstore.Options{"plugin": plugin, "path": path})
		im.lostf("%s: gotgt's plug-in %s has to be in iserd: build it with -tags ceph", where, plugin)
	default:
		im.lostf("target %s: LUN %d is left out: %s: stores of type %q have no like here", t.Name, number, where, plugin)
		return
	}
	im.addLUN(t, l)
}
