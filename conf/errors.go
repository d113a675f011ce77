package conf

import (
	"fmt"
	"strings"
)

// An Error is one mistake in a configuration.
type Error struct {
	// Path names the setting, as "targets/iqn.2026-01.example:a/luns/0"; empty: the file as a whole.
	Path string
	Err  error
	// File, Line and Column (from 1) are where it is, and Excerpt the lines around with a mark; Line is 0
	// if the setting stands in no file.
	File         string
	Line, Column int
	Excerpt      string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
		if e.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", e.Line, e.Column)
		}
		b.WriteString(" ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Err.Error())
	if e.Excerpt != "" {
		b.WriteString("\n" + e.Excerpt)
	}
	return b.String()
}
func (e *Error) Unwrap() error { return e.Err }

// Errors are all mistakes of a configuration, in the order of the file. There is at least one.
type Errors []*Error

func (e Errors) Error() string {
	var texts []string
	for _, one := range e {
		texts = append(texts, one.Error())
	}
	return strings.Join(texts, "\n")
}

// Unwrap is for errors.Is and errors.As.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i := range e {
		out[i] = e[i]
	}
	return out
}

func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// The shape of an excerpt.
const (
	excerptBefore = 2   // lines
	excerptWidth  = 120 // characters of a line
)

// excerpt shows a line of source, a few before it, and a mark under the column.
func excerpt(lines []string, line, column int) string {
	if line < 1 || line > len(lines) {
		return ""
	}
	var b strings.Builder
	for n := max(1, line-excerptBefore); n <= line; n++ {
		mark := ' '
		if n == line {
			mark = '>'
		}
		text := []rune(strings.ReplaceAll(strings.TrimRight(lines[n-1], "\r"), "\t", " "))
		text = text[:min(len(text), excerptWidth)]
		b.WriteString(strings.TrimRight(fmt.Sprintf("%c%5d | %s", mark, n, string(text)), " ") + "\n")
	}
	if column > excerptWidth {
		return strings.TrimSuffix(b.String(), "\n")
	}
	return b.String() + strings.Repeat(" ", len("> 12345 | ")-1+max(column-1, 0)) + "^"
}
