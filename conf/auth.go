package conf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goiser/goiser/iscsi/chap"
)

// auth reads `none`, or what initiators have to prove: {user: NAME, secret_file: PATH, ...}. It leaves to
// as it is after a mistake.
func (r *reader) auth(to **chap.Credentials) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		if s, ok := r.scalar(n); ok {
			if s != "none" {
				r.failf(n.GetToken(), path, "want none, or {user: NAME, secret_file: PATH}")
			}
			*to = nil
			return
		}
		c := &chap.Credentials{}
		var files SecretFiles
		before := len(r.errs)
		r.identity(n, path, &c.User, &c.Secret, &files.Secret,
			field{"mutual", func(n ast.Node, path string) {
				r.identity(n, path, &c.MutualUser, &c.MutualSecret, &files.Mutual)
			}},
			field{"algorithms", func(n ast.Node, path string) {
				r.items(n, path, func(n ast.Node, path string) {
					name, _ := r.scalar(n)
					a, err := chap.ParseAlgorithm(name)
					if err != nil {
						r.failf(n.GetToken(), path, "%w", err)
					}
					c.Algorithms = append(c.Algorithms, a)
				})
			}},
		)
		if err := c.Check(); err != nil && len(r.errs) == before {
			r.failf(n.GetToken(), path, "%w; want {user: NAME, secret_file: PATH}", err)
		}
		if *to = c; files != (SecretFiles{}) {
			if r.files == nil {
				r.files = map[*chap.Credentials]SecretFiles{}
			}
			r.files[c] = files
		}
	}
}

// SecretFiles are the paths of the files with the secrets of credentials; empty: the secret is in none.
type SecretFiles struct{ Secret, Mutual string }

// identity reads a name and its secret, from the file or from a file of its own, whose path becomes *file.
func (r *reader) identity(n ast.Node, path string, user *string, secret *chap.Secret, file *string, more ...field) {
	r.fields(n, path, append([]field{
		{"user", r.text(user)},
		{"secret", func(n ast.Node, path string) {
			text, ok := r.scalar(n)
			if !ok {
				r.failf(n.GetToken(), path, "want a text; what stands there is not shown")
				return
			}
			r.setSecret(n, path, secret, text)
			r.inline = true
		}},
		{"secret_file", func(n ast.Node, path string) {
			var name string
			r.text(&name)(n, path)
			if name == "" {
				return
			}
			text, warning, err := readSecret(name)
			if err != nil {
				r.failf(n.GetToken(), path, "%w", err)
				return
			}
			if warning != "" {
				r.warnings = append(r.warnings, warning)
			}
			*file = name
			r.setSecret(n, path, secret, text)
		}},
	}, more...)...)
}

func (r *reader) setSecret(n ast.Node, path string, to *chap.Secret, text string) {
	s, err := chap.NewSecret(text)
	switch {
	case err != nil:
		r.failf(n.GetToken(), path, "%w", err)
	case !to.IsZero():
		r.failf(n.GetToken(), path, "both secret and secret_file; give one")
	default:
		*to = s
	}
}

// ReadSecret reads a CHAP secret from a file: its first line, and there must be no other. warning is not
// empty if people other than the file's owner and group can read it.
func ReadSecret(path string) (s chap.Secret, warning string, err error) {
	text, warning, err := readSecret(path)
	if err != nil {
		return s, "", err
	}
	if s, err = chap.NewSecret(text); err != nil {
		return s, "", fmt.Errorf("secret file %s: %w", path, err)
	}
	return s, warning, nil
}

// readSecret opens without waiting: the name may be a pipe's.
func readSecret(path string) (text, warning string, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", "", fmt.Errorf("secret file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", "", fmt.Errorf("secret file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", "", fmt.Errorf("secret file %s: not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, chap.MaxSecret+3)) // a line end may follow, and one byte too much
	if err != nil {
		return "", "", fmt.Errorf("secret file: %w", err)
	}
	text = strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if strings.ContainsAny(text, "\r\n") {
		return "", "", fmt.Errorf("secret file %s: %w", path, errLines)
	}
	return text, exposed("secret file", path, info), nil
}

var errLines = errors.New("more than one line; a secret is one")

// exposed is a warning about a file with secrets that everybody can read.
func exposed(what, path string, info os.FileInfo) string {
	if info.Mode().Perm()&0o007 == 0 {
		return ""
	}
	return fmt.Sprintf("%s %s: everybody on this host can get at its secret; chmod o= %s", what, path, path)
}

// secretKey finds the key of a secret, and what follows it in the line.
var secretKey = regexp.MustCompile(`\bsecret["']?[ \t]*:(.*)`)

// hideSecrets makes lines that can be shown. What follows the key of a secret in its line, and lines after it
// that stand further in, become stars.
func hideSecrets(lines []string) []string {
	out := make([]string, len(lines))
	hiding, depth := false, 0
	for i, line := range lines {
		indent := len(line) - len(strings.TrimLeft(line, " \t"))
		if hiding = hiding && (indent > depth || strings.TrimSpace(line) == ""); hiding {
			out[i] = stars(line)
			continue
		}
		out[i] = line
		if m := secretKey.FindStringSubmatchIndex(line); m != nil {
			out[i] = line[:m[2]] + stars(line[m[2]:])
			hiding, depth = true, indent
		}
	}
	return out
}

// stars keeps columns.
func stars(s string) string {
	text := strings.TrimLeft(s, " \t")
	return s[:len(s)-len(text)] + strings.Repeat("*", utf8.RuneCountInString(text))
}
