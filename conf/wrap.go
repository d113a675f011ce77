package conf

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goiser/goiser/backstore"
)

// OpenOrder is a checked configuration's stores in the order in which they can be opened: each behind the one that
// it wraps, else as they stand in the file. They are closed in the reverse order.
func OpenOrder(list []Backstore) []Backstore {
	var order []Backstore
	opened := map[string]bool{}
	for len(order) < len(list) {
		before := len(order)
		for _, b := range list {
			below, wraps := backstore.Wraps(b.Type, b.Options)
			if opened[b.Name] || wraps && !opened[below] {
				continue
			}
			opened[b.Name] = true
			order = append(order, b)
		}
		if len(order) == before {
			panic("conf: stores that wrap each other, or what is not there; Check was not asked")
		}
	}
	return order
}

// wraps checks stores that wrap others: what they wrap is there, is not they themselves, and nothing else uses it,
// because it would see the disk without what the wrapper does.
func (k *checker) wraps(c *Config) {
	below, users := map[string]string{}, map[string]string{}
	var names []string
	for _, b := range c.Backstores {
		names = append(names, b.Name)
		if store, is := backstore.Wraps(b.Type, b.Options); is && store != "" {
			below[b.Name] = store
		}
	}
	for _, b := range c.Backstores {
		store, is := below[b.Name]
		if !is {
			continue
		}
		path := "backstores/" + b.Name + "/store"
		if !slices.Contains(names, store) {
			k.failf(path, "there is no store %q; backstores has %s", store, list(slices.Sorted(slices.Values(names))))
		} else if user := users[store]; user != "" {
			k.failf(path, "%s is wrapped by %s already", store, user)
		} else if round := cycle(below, b.Name); round != nil {
			k.failf(path, "%s wraps itself: %s", b.Name, strings.Join(round, " wraps "))
		}
		users[store] = b.Name
	}
	for _, t := range c.Targets {
		for _, l := range t.LUNs {
			if user := users[l.Store]; user != "" {
				k.failf("targets/"+string(t.Name)+"/luns/"+strconv.Itoa(l.Number)+"/store", "%s is wrapped by %s, which is what can be served", l.Store, user)
			}
		}
	}
}

// cycle is the way from a store over those that it wraps back to itself; nil if there is none.
func cycle(below map[string]string, name string) []string {
	way := []string{name}
	for at := below[name]; at != "" && len(way) <= len(below); at = below[at] {
		if way = append(way, at); at == name {
			return way
		}
	}
	return nil
}
