package isns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A Node is a target with the portals that lead to it.
type Node struct {
	Name, Alias string
	Portals     []Portal
}

// A Portal is an address of a portal group.
type Portal struct {
	Addr  netip.AddrPort
	Group uint16
}

// maxBatch is how many bytes of payload a registration has before another message is begun. Servers have buffers.
const maxBatch = 16 << 10

// registrations makes the messages that register nodes for an entity (RFC 4171, 5.6.5.1): the entity and the portals
// in the first, and as many nodes in each as fit. Only the first replaces what the server has. Nodes must not be
// empty: the first is the source of all messages.
func registrations(entity string, period time.Duration, nodes []Node, replace bool) [][]byte {
	head := appendString(nil, TagName, nodes[0].Name)
	head = appendString(head, TagEntity, entity)
	head = appendAttr(head, TagDelimiter)
	head = appendString(head, TagEntity, entity)
	head = appendNumber(head, TagProtocol, protocolISCSI)
	head = appendNumber(head, TagPeriod, uint32(period/time.Second))

	var list [][]byte
	b := slices.Clone(head)
	flush := func() {
		flags := FromClient | FirstPDU | LastPDU
		if replace && len(list) == 0 {
			flags |= Replace
		}
		list = append(list, (&Message{Function: DevAttrReg, Flags: flags, Payload: b}).Append(nil))
		b = slices.Clone(head)
	}
	for _, p := range portalsOf(nodes) {
		if b = appendPlace(b, TagPortalAddr, TagPortalPort, p); len(b) > maxBatch {
			flush()
		}
	}
	for i := range nodes {
		n := appendNode(nil, &nodes[i])
		if len(b)+len(n) > maxBatch && len(b) > len(head) {
			flush()
		}
		b = append(b, n...)
	}
	flush()
	return list
}

// appendNode appends a target and its portal groups (RFC 4171, 6.4 and 6.5).
func appendNode(b []byte, n *Node) []byte {
	b = appendString(b, TagName, n.Name)
	b = appendNumber(b, TagNodeType, nodeTypeTarget)
	if n.Alias != "" {
		b = appendString(b, TagAlias, n.Alias)
	}
	for _, p := range n.Portals {
		b = appendPlace(b, TagGroupAddr, TagGroupPort, p.Addr)
		b = appendNumber(b, TagGroupTag, uint32(p.Group))
	}
	return b
}

// portalsOf lists the addresses of nodes, each once.
func portalsOf(nodes []Node) []netip.AddrPort {
	var list []netip.AddrPort
	seen := make(map[netip.AddrPort]bool)
	for _, n := range nodes {
		for _, p := range n.Portals {
			if !seen[p.Addr] {
				seen[p.Addr] = true
				list = append(list, p.Addr)
			}
		}
	}
	return list
}

// deregistration takes an entity with all that it has back (RFC 4171, 5.6.5.4).
func deregistration(entity, source string) []byte {
	b := appendString(nil, TagName, source)
	b = appendAttr(b, TagDelimiter)
	b = appendString(b, TagEntity, entity)
	return (&Message{Function: DevDereg, Flags: FromClient | FirstPDU | LastPDU, Payload: b}).Append(nil)
}

// A StatusError is a refusal by the server.
type StatusError struct {
	Function Function
	Status   uint32
}

func (e *StatusError) Error() string {
	words := "unknown status"
	if int(e.Status) < len(statusWords) && statusWords[e.Status] != "" {
		words = statusWords[e.Status]
	}
	return fmt.Sprintf("iSNS server refuses function %04x: status %d (%s)", uint16(e.Function), e.Status, words)
}

// statusWords are the error codes (RFC 4171, 5.4).
var statusWords = [...]string{
	0: "success", 1: "unknown error", 2: "message format error", 3: "invalid registration", 5: "invalid query",
	6: "source unknown", 7: "source absent", 8: "source unauthorized", 9: "no such entry", 10: "version not supported",
	11: "internal error", 12: "busy", 13: "option not understood", 14: "invalid update", 15: "message not supported",
	16: "SCN event rejected", 17: "SCN registration rejected", 18: "attribute not implemented", 21: "ESI not available",
	22: "invalid deregistration", 23: "registration feature not supported",
}

// answered reads the payload of a response's first PDU: a status, and the period if the server says one.
func answered(f Function, payload []byte) (period time.Duration, err error) {
	if len(payload) < 4 {
		return 0, fmt.Errorf("%w: a response without status", ErrWire)
	}
	if status := binary.BigEndian.Uint32(payload); status != 0 {
		return 0, &StatusError{Function: f, Status: status}
	}
	err = eachAttr(payload[4:], func(tag Tag, value []byte) {
		if tag == TagPeriod && len(value) == 4 {
			period = time.Duration(binary.BigEndian.Uint32(value)) * time.Second
		}
	})
	return period, err
}
