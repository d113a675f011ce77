package tcp

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// A writer finishes a batch that the socket did not take at once. It is a goroutine that exists from the
// first time that this happens until the connection's end; start and done hand the batch over and back.
type writer struct {
	c       *conn
	work    chan struct{}
	done    chan error
	gone    chan struct{}
	started bool
	stop    atomic.Bool // give the batch back as it is
}

// errStopped is the writer's answer to stop.
var errStopped = errors.New("stopped")

func (w *writer) init(c *conn) { w.c = c }

// start hands the batch to the writer.
func (w *writer) start() {
	if !w.started {
		w.started = true
		w.work = make(chan struct{}, 1)
		w.done = make(chan error, 1)
		w.gone = make(chan struct{})
		go w.run()
	}
	w.work <- struct{}{}
}

func (w *writer) run() {
	defer close(w.gone)
	for range w.work {
		w.done <- w.write()
		w.c.Wake()
	}
}

// write writes what is left of the batch. Progress of any size renews the peer's time.
func (w *writer) write() error {
	nc, b := w.c.nc, &w.c.tx.b
	for {
		if err := nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if w.stop.Load() { // after the deadline, for interrupt sets its own after stop
			return errStopped
		}
		n, err := b.rest.WriteTo(nc)
		switch {
		case err == nil:
			return nc.SetWriteDeadline(time.Time{})
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case n == 0 && !w.stop.Load():
			return fmt.Errorf("peer has taken nothing for %v: %w", writeTimeout, err)
		}
	}
}

// interrupt takes the batch back now, with what is left of it in rest. It returns the writer's error; nil
// means that all was written or that the batch may be started again.
func (w *writer) interrupt() error {
	w.stop.Store(true)
	_ = w.c.nc.SetWriteDeadline(past) // of a closed connection: the write ends by itself
	err := <-w.done
	w.stop.Store(false)
	if err == nil || errors.Is(err, errStopped) {
		err = w.c.nc.SetWriteDeadline(time.Time{})
	}
	return err
}

// end stops the goroutine. The connection is closed, so that no write blocks.
func (w *writer) end() {
	if !w.started {
		return
	}
	if w.c.tx.busy {
		<-w.done
		w.c.tx.busy = false
	}
	close(w.work)
	<-w.gone
	w.started = false
}
