package admin

import (
	"os"
	"path/filepath"
)

const (
	// DefaultSocket is where a daemon has its admin socket if nobody says.
	DefaultSocket = "/run/iserd/admin.sock"
	// SocketVariable is the environment variable that says, for both commands.
	SocketVariable = "ISERD_SOCKET"
)

// Socket is the path of the admin socket: what the environment says, else the usual place, else, for who cannot write
// there, one in the user's own directory of such things.
func Socket() string {
	if path := os.Getenv(SocketVariable); path != "" {
		return path
	}
	if os.Geteuid() == 0 {
		return DefaultSocket
	}
	if _, err := os.Stat(filepath.Dir(DefaultSocket)); err == nil {
		return DefaultSocket
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "iserd", "admin.sock")
	}
	return DefaultSocket
}
