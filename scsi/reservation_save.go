package scsi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// A StateKeeper keeps what must survive a power loss: the reservations of units (APTPL), by the unit's
// serial number of VPD page 80h. Its methods may be called from many goroutines, but not for one name at
// once.
type StateKeeper interface {
	// Load gives what Save was given last; nil if nothing. Damage is an error.
	Load(name string) ([]byte, error)
	// Save returns when state is what Load gives after a power cut: it is replaced as a whole. An empty
	// state is forgotten. After an error it is either the old state or the new one.
	Save(name string, state []byte) error
}

// savedVersion is the version of the saved form.
const savedVersion = 1

// A savedRegistry is the saved form of a registry. PRGENERATION is not in it: it is zero after a power
// loss (SPC-4, 6.15.2).
type savedRegistry struct {
	Version     int               `json:"version"`
	Kind        reservationKind   `json:"type"` // SPC-4, 6.15.3.4; 0: none
	Holder      *savedNexus       `json:"holder,omitempty"`
	Registrants []savedRegistrant `json:"registrants"`
}

type savedNexus struct {
	Initiator string `json:"initiator"`
	Port      uint16 `json:"port"`
}

type savedRegistrant struct {
	savedNexus
	Key string `json:"key"` // 16 hexadecimal digits
}

// encode makes the saved form; empty if nothing is to survive.
func (g *registry) encode() []byte {
	if !g.aptpl {
		return nil
	}
	s := savedRegistry{Version: savedVersion, Kind: g.kind, Registrants: []savedRegistrant{}}
	if g.holder != (nexusName{}) {
		s.Holder = &savedNexus{g.holder.initiator, g.holder.port}
	}
	for _, r := range g.registrants {
		s.Registrants = append(s.Registrants, savedRegistrant{
			savedNexus{r.nexus.initiator, r.nexus.port}, fmt.Sprintf("%016x", r.key),
		})
	}
	b, err := json.Marshal(&s)
	if err != nil {
		panic(fmt.Sprintf("scsi: encode reservations: %v", err)) // nothing in it can fail
	}
	return b
}

// decodeRegistry reads the saved form, and believes nothing that could not have been saved.
func decodeRegistry(b []byte) (*registry, error) {
	var s savedRegistry
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something after the end")
	}
	switch {
	case s.Version != savedVersion:
		return nil, fmt.Errorf("version %d is not known", s.Version)
	case len(s.Registrants) > maxRegistrants:
		return nil, fmt.Errorf("%d registrations; at most %d", len(s.Registrants), maxRegistrants)
	case s.Kind != 0 && (!s.Kind.valid() || len(s.Registrants) == 0):
		return nil, fmt.Errorf("a reservation of type %d with %d registrations", s.Kind, len(s.Registrants))
	case (s.Holder != nil) != (s.Kind != 0 && !s.Kind.allRegistrants()):
		return nil, fmt.Errorf("holder %v of a reservation of type %d", s.Holder, s.Kind)
	}
	g := (&registry{kind: s.Kind, aptpl: true}).copy()
	for _, r := range s.Registrants {
		n := nexusName{r.Initiator, r.Port}
		key, err := strconv.ParseUint(r.Key, 16, 64)
		if err != nil || len(r.Key) != 16 || key == 0 || g.find(n) != nil || r.Initiator == "" {
			return nil, fmt.Errorf("registration %+v", r)
		}
		g.enter(n, key)
	}
	if s.Holder != nil {
		g.holder = nexusName{s.Holder.Initiator, s.Holder.Port}
		if g.find(g.holder) == nil {
			return nil, fmt.Errorf("holder %v is not registered", *s.Holder)
		}
	}
	return g, nil
}
