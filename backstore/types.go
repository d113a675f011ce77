package backstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Options are a store's settings, by name: what YAML or a command line gives.
type Options map[string]string

// A Type describes one kind of store.
type Type struct {
	Name    string
	Summary string
	Options []Option

	open func(settings) (Store, error)        // nil: it wraps another one
	over func(settings, Store) (Store, error) // nil: it wraps none
}

// wrapOption is the option of a type that wraps another store: the name of that one.
const wrapOption = "store"

// Wraps is the name of the store that one of this type and options wraps, as its caller knows it; false if the type
// wraps none, or is not known.
func Wraps(typ string, opts Options) (name string, is bool) {
	for _, t := range Types() {
		if t.Name == typ && t.over != nil {
			return opts[wrapOption], true
		}
	}
	return "", false
}

// An Option is a setting of a Type.
type Option struct {
	Name     string
	Required bool
	Default  string
	Summary  string   // with its unit or values
	Values   []string // the only values there are; empty: any

	check func(value string) error // nil: any text
}

// An OptionError is a setting that cannot be: Open and Check return it before anything is opened.
type OptionError struct {
	Type string
	// Option is the option's name; empty if the type itself is the trouble.
	Option string
	Err    error
}

func (e *OptionError) Error() string {
	if e.Option == "" {
		return fmt.Sprintf("store type %q: %v", e.Type, e.Err)
	}
	return fmt.Sprintf("%s store: option %s: %v", e.Type, e.Option, e.Err)
}
func (e *OptionError) Unwrap() error { return e.Err }

// yesNo are the values of a switch (see ParseSwitch).
var yesNo = []string{"yes", "no"}

// ParseSwitch reads a switch of a command line or file: yes or no (RFC 7143 writes Yes), or as YAML has it, true or
// false.
func ParseSwitch(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "yes", "true":
		return true, nil
	case "no", "false":
		return false, nil
	}
	return false, fmt.Errorf("%.60q: want yes or no", s)
}

// Types lists every kind of store, by name. The configuration file, the command line and the help text
// are all made from it.
func Types() []Type {
	syncOption := Option{
		Name: "sync", Default: "flush", Values: []string{"flush", "fua", "dsync"},
		Summary: "flush: writes are cached until a flush, a forced write (FUA) flushes the file; " +
			"fua: the same, but a forced write flushes its own blocks only; dsync: every write is durable when it is answered",
	}
	readOnlyOption := Option{Name: "readonly", Default: "no", Values: yesNo, Summary: "open for reading only"}
	return []Type{
		{
			Name: "block", Summary: "a block device: a disk, a partition, a logical volume", open: openBlock,
			Options: []Option{
				{Name: "path", Required: true, Summary: "the device's path; nothing else may use it", check: notEmpty},
				{Name: "direct", Default: "yes", Values: yesNo, Summary: "bypass the page cache (O_DIRECT)"},
				syncOption,
				readOnlyOption,
			},
		},
		faultType(),
		{
			Name: "file", Summary: "a regular file", open: openFile,
			Options: []Option{
				{Name: "path", Required: true, Summary: "the file's path", check: notEmpty},
				{Name: "size", Summary: "bytes (64GiB): a missing file is created, sparse; a shorter one grows; a longer one stays as it is", check: storeSize},
				{Name: "direct", Default: "no", Values: yesNo, Summary: "bypass the page cache (O_DIRECT)"},
				syncOption,
				readOnlyOption,
				{
					Name: "thin", Default: "yes", Values: yesNo,
					Summary: "yes: space is taken when first written and given back when unmapped; " +
						"no: all of it is taken beforehand, so that no write can fail for want of it",
				},
			},
		},
		gotgtType(),
		{
			Name: "null", Summary: "nothing: reads zeros, discards writes", open: openNull,
			Options: []Option{{Name: "size", Default: "1TiB", Summary: "bytes", check: storeSize}},
		},
		patternType(),
		{
			Name: "ram", Summary: "memory of this process, lost when it ends", open: openRAM,
			Options: []Option{{Name: "size", Required: true, Summary: "bytes (1GiB); memory is taken when first written", check: storeSize}},
		},
	}
}

// Open makes a store of a type (Types) with options. An error names the store's type, the
// option or path, and what was expected; it is an *OptionError if the options are wrong in themselves.
func Open(typ string, opts Options) (Store, error) {
	t, s, err := check(typ, opts)
	if err != nil {
		return nil, err
	}
	if t.open == nil {
		return nil, &OptionError{Type: typ, Option: wrapOption, Err: errors.New("it wraps a store, which OpenOver is given")}
	}
	return t.open(s)
}

// OpenOver makes a store of a type that wraps another one (Wraps), over that one. Its caller still owns the one below,
// and closes it after the one above. Errors are those of Open.
func OpenOver(typ string, opts Options, below Store) (Store, error) {
	t, s, err := check(typ, opts)
	if err != nil {
		return nil, err
	}
	if t.over == nil {
		return nil, &OptionError{Type: typ, Err: errors.New("it wraps no store")}
	}
	return t.over(s, below)
}

// Check finds what is wrong with options without opening anything. An error is an *OptionError.
func Check(typ string, opts Options) error {
	_, _, err := check(typ, opts)
	return err
}

// settings are options that have been checked, with every default filled in.
type settings map[string]string

func (s settings) yes(name string) bool { return s[name] == "yes" }

// size is an option that storeSize has passed; 0 if it was not given.
func (s settings) size(name string) int64 {
	if s[name] == "" {
		return 0
	}
	n, err := ParseSize(s[name])
	if err != nil {
		panic(fmt.Sprintf("backstore: unchecked size: %v", err))
	}
	return n
}

// number is an option that checkSeed has passed.
func (s settings) number(name string) uint64 {
	n, err := strconv.ParseUint(s[name], 10, 64)
	if err != nil {
		panic(fmt.Sprintf("backstore: unchecked number: %v", err))
	}
	return n
}

func check(typ string, opts Options) (Type, settings, error) {
	types := Types()
	i := slices.IndexFunc(types, func(t Type) bool { return t.Name == typ })
	if i < 0 {
		var names []string
		for _, t := range types {
			names = append(names, t.Name)
		}
		return Type{}, nil, &OptionError{Type: typ, Err: fmt.Errorf("not known; there are %s", strings.Join(names, ", "))}
	}
	t, s := types[i], settings{}
	for _, o := range t.Options {
		v, given := opts[o.Name]
		if !given && o.Required {
			return t, nil, &OptionError{Type: typ, Option: o.Name, Err: errors.New("missing: " + o.Summary)}
		}
		if !given {
			v = o.Default
		} else if err := o.checkValue(&v); err != nil {
			return t, nil, &OptionError{Type: typ, Option: o.Name, Err: err}
		}
		s[o.Name] = v
	}
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		if _, known := s[name]; !known {
			return t, nil, &OptionError{Type: typ, Option: name, Err: errors.New("not known; there are " + t.optionNames())}
		}
	}
	return t, s, nil
}

// checkValue checks a value and brings it to its one spelling.
func (o *Option) checkValue(v *string) error {
	if on, err := ParseSwitch(*v); err == nil && slices.Equal(o.Values, yesNo) {
		*v = "no"
		if on {
			*v = "yes"
		}
	}
	if len(o.Values) > 0 && !slices.Contains(o.Values, *v) {
		return fmt.Errorf("%q is not one of %s", *v, strings.Join(o.Values, ", "))
	}
	if o.check != nil {
		return o.check(*v)
	}
	return nil
}

func (t *Type) optionNames() string {
	var names []string
	for _, o := range t.Options {
		names = append(names, o.Name)
	}
	return strings.Join(names, ", ")
}

func notEmpty(v string) error {
	if v == "" {
		return errors.New("empty")
	}
	return nil
}

// storeSize checks a size that a store can have.
func storeSize(v string) error {
	n, err := ParseSize(v)
	if err != nil {
		return err
	}
	if err := checkSize(n); err != nil {
		return fmt.Errorf("%s (%d bytes) %w", v, n, err)
	}
	return nil
}

// checkSize checks that a store can have a size, in bytes.
func checkSize(n int64) error {
	if n <= 0 || n%MinBlock != 0 {
		return fmt.Errorf("is not a multiple of %d bytes, at least one", MinBlock)
	}
	return nil
}
