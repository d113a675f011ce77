package target

import "sync"

// An item is a message to a connection's loop.
type item struct {
	kind itemKind
	task *task
	op   *tmfOp
	set  abortSet
	err  error
}

type itemKind uint8

const (
	// itemExecuted: a worker is done with task.
	itemExecuted itemKind = iota
	// itemGranted: the pool has filled task.wait.Bufs.
	itemGranted
	// itemResume: task has been held back, and may go on.
	itemResume
	// itemClose: the connection shall end because of err.
	itemClose
	// itemRetry: the session, or the connection, that a login waits for has ended.
	itemRetry
	// itemShutdown: the server goes down.
	itemShutdown
	// itemAbort: abort what set says and tell op when all of it is quiet.
	itemAbort
	// itemQuiet: op's tasks are quiet in all sessions.
	itemQuiet
	// itemTurn: the request that a session's ExpCmdSN stands at came on this connection.
	itemTurn
	// itemLeft: another connection of the session is gone.
	itemLeft
)

// An inbox is how other goroutines reach a connection's loop. It holds at most: one item for each of
// the session's tasks, one itemClose, one itemShutdown, one itemTurn and one itemRetry at a time, one
// itemLeft for each other connection of the session, and one item for each pending task management function
// of each connection of the target (maxTMF each).
type inbox struct {
	mu      sync.Mutex
	items   []item
	spare   []item // swapped with items
	closing bool   // an itemClose is in it, or was
	called  bool   // an itemTurn is in it
	deaf    bool   // the datamover is closed: no Wake any more
	shut    bool   // the loop has ended: nothing gets in
	bell    chan struct{}
}

// post hands it to c's loop. False means that the loop has ended, and it has been dropped.
func (c *conn) post(it item) bool {
	b := &c.inbox
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return false
	}
	switch {
	case it.kind == itemClose && b.closing, it.kind == itemTurn && b.called:
		return true
	case it.kind == itemClose:
		b.closing = true
	case it.kind == itemTurn:
		b.called = true
	}
	b.items = append(b.items, it)
	if len(b.items) > 1 {
		return true // whoever came first has woken the loop
	}
	if !b.deaf {
		c.dm.Wake()
		return true
	}
	select {
	case b.bell <- struct{}{}:
	default:
	}
	return true
}

// take empties the inbox. The result is valid until the next take.
func (b *inbox) take() []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items, b.spare, b.called = b.spare[:0], items, false
	return items
}

// deafen makes post ring the bell in place of waking the datamover, which is about to be closed.
func (b *inbox) deafen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deaf = true
}

// shutAndTake ends the inbox and returns what was left in it.
func (b *inbox) shutAndTake() []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut = true
	items := b.items
	b.items = nil
	return items
}
