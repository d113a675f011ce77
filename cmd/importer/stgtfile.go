package importer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of what includes can come to.
const (
	maxIncludeDepth = 16 // that Perl's parser allows more is of no use to anybody
	maxIncludeFiles = 4096
)

// A stgtBlock is `<kind name> ... </kind>` of targets.conf, or the whole.
type stgtBlock struct {
	kind, name string
	where      string // FILE:LINE
	options    []stgtOption
	blocks     []*stgtBlock
}

// A stgtOption is a line with a name and a value.
type stgtOption struct{ key, value, where string }

// last is the value of an option that counts if it stands there more than once; where is empty if it does not.
func (b *stgtBlock) last(key string) (value, where string) {
	for _, o := range b.options {
		if o.key == key {
			value, where = o.value, o.where
		}
	}
	return value, where
}

// block is the block of a kind and name, a new one if there is none: those of one name are one.
func (b *stgtBlock) block(kind, name, where string) *stgtBlock {
	i := slices.IndexFunc(b.blocks, func(c *stgtBlock) bool { return c.kind == kind && c.name == name })
	if i >= 0 {
		return b.blocks[i]
	}
	c := &stgtBlock{kind: kind, name: name, where: where}
	b.blocks = append(b.blocks, c)
	return c
}

// A stgtParser reads the files of a configuration, as Perl's Config::General does for tgt-admin.
type stgtParser struct {
	open  []*stgtBlock // the innermost is the last
	files int
}

func (p *stgtParser) file(path string, depth int) error {
	if p.files++; depth > maxIncludeDepth || p.files > maxIncludeFiles {
		return fmt.Errorf("%s: includes go deeper than %d, or are more than %d", path, maxIncludeDepth, maxIncludeFiles)
	}
	b, err := readFile(path)
	if err != nil {
		return err
	}
	before := len(p.open)
	lines := strings.Split(string(b), "\n")
	for i := 0; i < len(lines); i++ {
		where := fmt.Sprintf("%s:%d", path, i+1)
		line := lines[i]
		for strings.HasSuffix(line, "\\") && i+1 < len(lines) {
			i++
			line = line[:len(line)-1] + strings.TrimLeft(lines[i], " \t")
		}
		if strings.HasPrefix(strings.TrimSpace(line), "/*") {
			for i < len(lines)-1 && !strings.Contains(lines[i], "*/") {
				i++
			}
			continue
		}
		if err := p.line(where, uncomment(line), path, depth); err != nil {
			return err
		}
		if len(p.open) < before {
			return fmt.Errorf("%s: ends a block of the file that includes this one", where)
		}
	}
	if len(p.open) > before {
		b := p.open[len(p.open)-1]
		return fmt.Errorf("%s: <%s %s> has no end", b.where, b.kind, b.name)
	}
	return nil
}

// uncomment drops what follows a # that has no backslash before it, and space around the rest.
func uncomment(line string) string {
	for i := 0; i < len(line); i++ {
		if line[i] == '#' && (i == 0 || line[i-1] != '\\') {
			line = line[:i]
			break
		}
	}
	return strings.TrimSpace(strings.ReplaceAll(line, `\#`, "#"))
}

func (p *stgtParser) line(where, line, path string, depth int) error {
	top := p.open[len(p.open)-1]
	switch {
	case line == "":
		return nil
	case strings.HasPrefix(line, "<"):
		return p.tag(where, line)
	}
	key, value := line, ""
	if i := strings.IndexAny(line, " \t="); i >= 0 {
		key, value = line[:i], strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line[i:]), "="))
	}
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	if strings.EqualFold(key, "include") {
		return p.include(where, value, path, depth)
	}
	top.options = append(top.options, stgtOption{key, value, where})
	return nil
}

func (p *stgtParser) tag(where, line string) error {
	top := p.open[len(p.open)-1]
	text, ok := strings.CutSuffix(line, ">")
	if !ok {
		return fmt.Errorf("%s: %q is no tag: it has no >", where, line)
	}
	if kind, end := strings.CutPrefix(text, "</"); end {
		if len(p.open) == 1 || !strings.EqualFold(strings.TrimSpace(kind), top.kind) {
			return fmt.Errorf("%s: %s does not end a block that is open here", where, line)
		}
		p.open = p.open[:len(p.open)-1]
		return nil
	}
	kind, name, _ := strings.Cut(strings.TrimSpace(text[1:]), " ")
	name = strings.Trim(strings.TrimSpace(name), `"'`)
	if kind == "" || name == "" {
		return fmt.Errorf("%s: %s names nothing", where, line)
	}
	p.open = append(p.open, top.block(strings.ToLower(kind), name, where))
	return nil
}

// include reads a file, those of a pattern, or all of a directory. A relative path is taken from the including file on. A
// pattern may find nothing; a plain file must be there.
func (p *stgtParser) include(where, value, from string, depth int) error {
	if !filepath.IsAbs(value) {
		value = filepath.Join(filepath.Dir(from), value)
	}
	if info, err := os.Stat(value); err == nil && info.IsDir() {
		value = filepath.Join(value, "*")
	}
	paths := []string{value}
	if strings.ContainsAny(value, "*?[") {
		var err error
		if paths, err = filepath.Glob(value); err != nil {
			return fmt.Errorf("%s: %q: %w", where, value, err)
		}
	}
	for _, path := range paths {
		if err := p.file(path, depth+1); err != nil {
			return fmt.Errorf("%s: include: %w", where, err)
		}
	}
	return nil
}
