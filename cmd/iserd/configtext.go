package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/conf"
)

// text is the running configuration, without secrets.
func (m *manager) text() (admin.ConfigText, error) {
	m.busy.Lock()
	defer m.busy.Unlock()
	return m.textLocked(string(m.running.Show())), nil
}

func (m *manager) textLocked(text string) admin.ConfigText {
	t := admin.ConfigText{Text: text, Unsaved: m.isUnsaved()}
	if m.file != nil {
		t.File = m.file.path
	}
	return t
}

// diff is what lies between the file, as it is now, and what runs. Neither's secrets are shown.
func (m *manager) diff() (admin.ConfigText, error) {
	if m.file == nil {
		return admin.ConfigText{}, errNoFile
	}
	c, err := m.load()
	if err != nil {
		return admin.ConfigText{}, err
	}
	m.busy.Lock()
	defer m.busy.Unlock()
	a, b := string(c.Show()), string(m.running.Show())
	text := difference(a, b)
	if text == "" && !bytes.Equal(c.Marshal(), m.running.Marshal()) {
		text = "(secrets differ)\n"
	}
	return m.textLocked(text), nil
}

// difference lists the lines that only a has, with "-", and those that only b has, with "+", in order; empty if there are
// none. What is the same at the beginning and the end is not looked at twice.
func difference(a, b string) string {
	x, y := strings.Split(strings.TrimSuffix(a, "\n"), "\n"), strings.Split(strings.TrimSuffix(b, "\n"), "\n")
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y = x[1:], y[1:]
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	// common[i][j] is the length of the longest common subsequence of x[i:] and y[j:].
	common := make([][]int32, len(x)+1)
	for i := range common {
		common[i] = make([]int32, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i, j = i+1, j+1
		case i < len(x) && (j == len(y) || common[i+1][j] >= common[i][j+1]):
			out.WriteString("-" + x[i] + "\n")
			i++
		default:
			out.WriteString("+" + y[j] + "\n")
			j++
		}
	}
	return out.String()
}

// applyText makes a whole configuration run. It does not get into the file by that.
func (m *manager) applyText(ctx context.Context, name string, text []byte, o options) (admin.Result, error) {
	c, err := conf.Parse(name, text)
	if err != nil {
		return admin.Result{}, err
	}
	return m.change(ctx, o, false, func(n *conf.Config) error { *n = *c; return nil })
}

func (m *manager) history() ([]admin.HistoryEntry, error) {
	if m.file == nil {
		return nil, errNoFile
	}
	m.busy.Lock()
	defer m.busy.Unlock()
	return m.file.history()
}

// rollback makes what was saved n times ago run.
func (m *manager) rollback(ctx context.Context, n int, o options) (admin.Result, error) {
	list, err := m.history()
	if err != nil {
		return admin.Result{}, err
	}
	if n < 1 || n > len(list) {
		return admin.Result{}, notFound(fmt.Sprintf("configuration %d of the history", n), "iser config history shows those that there are")
	}
	b, err := m.file.read(list[n-1].File)
	if err != nil {
		return admin.Result{}, err
	}
	return m.applyText(ctx, list[n-1].File, b, o)
}
