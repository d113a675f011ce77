package cmd_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryEntryIsCovered: docs/COVERAGE.md has a row for each field report of docs/cases.md and each statement of
// docs/ISER.md 8, with tests or a remark; an [OPEN] report has tests; and each test that is named exists.
func TestEveryEntryIsCovered(t *testing.T) {
	rows, tests := coverage(t)
	want := map[string]bool{} // whether a test must be there
	for _, m := range regexp.MustCompile(`(?m)^### ([A-Z]{2}-\d+)( \[OPEN\])?`).FindAllStringSubmatch(read(t, "../docs/cases.md"), -1) {
		want[m[1]] = m[2] != ""
	}
	checklist := read(t, "../docs/ISER.md")
	_, checklist, found := strings.Cut(checklist, "\n## 8. ")
	require.True(t, found)
	checklist, _, _ = strings.Cut(checklist, "\n## 9. ")
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(checklist, -1) {
		want[m[1]] = false
	}
	require.Greater(t, len(want), 200, "both lists were read")
	for id, open := range want {
		row, ok := rows[id]
		if assert.True(t, ok, "docs/COVERAGE.md has no row for %s", id) {
			assert.True(t, row.tests > 0 || row.remark != "" && !open, "%s has neither test nor reason", id)
		}
	}
	for id := range rows {
		assert.Contains(t, want, id, "a row for what is in neither list")
	}
	for name, id := range tests {
		assert.True(t, exists(t, name), "%s: there is no %s", id, name)
	}
}

type coverageRow struct {
	tests  int
	remark string
}

// coverage reads the tables of docs/COVERAGE.md, and who names which test.
func coverage(t *testing.T) (rows map[string]coverageRow, tests map[string]string) {
	rows, tests = map[string]coverageRow{}, map[string]string{}
	name := regexp.MustCompile("`([a-z/]+\\.[A-Za-z0-9_]+)`")
	for line := range strings.Lines(read(t, "../docs/COVERAGE.md")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		id := strings.TrimRight(strings.TrimSpace(cells[1]), "*")
		if !regexp.MustCompile(`^([A-Z]{2}-)?\d+$`).MatchString(id) {
			continue
		}
		assert.NotContains(t, rows, id, "two rows")
		named := name.FindAllStringSubmatch(cells[2], -1)
		rows[id] = coverageRow{len(named), strings.TrimSpace(cells[3])}
		for _, m := range append(named, name.FindAllStringSubmatch(cells[3], -1)...) {
			tests[m[1]] = id
		}
	}
	return rows, tests
}

// exists says whether a test folder.Name is there; folder vm is that of the interoperability cases.
func exists(t *testing.T, name string) bool {
	fn := path.Ext(name)[1:]
	dir := strings.TrimSuffix(name, "."+fn)
	pattern, definition := filepath.Join("..", dir, "*_test.go"), `(?m)^func `+fn+`\(`
	if dir == "vm" {
		pattern, definition = "../.ci/interop/*.sh", `(?m)^`+fn+`\(\) `
	}
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	for _, f := range files {
		if regexp.MustCompile(definition).MatchString(read(t, f)) {
			return true
		}
	}
	return false
}

func read(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}
