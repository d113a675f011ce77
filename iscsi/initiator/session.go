package initiator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/goiser/goiser/iscsi"
	"github.com/sirupsen/logrus"
)

// eventBatch is how many events the loop takes in one round.
const eventBatch = 64

var errClosed = fmt.Errorf("session closed: %w", net.ErrClosed)

// A Session is a logged-in normal session with one connection. Its methods may be called from many
// goroutines.
type Session struct {
	dm        iscsi.InitiatorDatamover
	core      *core // the loop's
	params    iscsi.Params
	log       logrus.FieldLogger
	target    string
	group     string                        // the target's portal group
	attention func(iscsi.LUN, *StatusError) // nil: nobody wants to know
	number    uint64                        // of a Connection's session, from 1 on
	path      int                           // its index in Paths

	fenced  chan struct{} // closed when it is over and the target has ended its tasks: see Paths
	fencing sync.Once

	requests   requestPool
	mail       mailbox
	tasks      chan struct{} // a token for each command that may be outstanding
	management chan struct{} // and for each other request

	done chan struct{}
	err  error // set before done is closed

	closeOnce sync.Once
}

// start runs a session on a connection that has reached full-feature phase.
func start(dm iscsi.InitiatorDatamover, l *login, o *Options, target string) (*Session, error) {
	s := &Session{
		dm: dm, params: l.params, target: target, group: l.group, attention: o.Attention,
		tasks:      make(chan struct{}, o.QueueDepth),
		management: make(chan struct{}, maxManagement),
		done:       make(chan struct{}),
		fenced:     make(chan struct{}),
	}
	s.log = o.Log.WithFields(logrus.Fields{"session": fmt.Sprintf("%04x", l.tsih), "target": target})
	s.core = newCore(dm, s.log, o.QueueDepth, timing{o.CommandTimeout, max(o.PingInterval, 0)})
	s.core.seq, s.core.cmdSN, s.core.heard = l.seq, l.cmdSN, time.Now()
	if err := dm.Enable(&s.params, &s.core.seq); err != nil {
		return nil, fmt.Errorf("enter full-feature phase: %w", err)
	}
	s.log.WithField("initiator", o.InitiatorName).Info("logged in")
	go s.run()
	return s, nil
}

// run is the loop: the only goroutine that touches the datamover and the core.
func (s *Session) run() {
	defer close(s.done)
	c := s.core
	events := make([]iscsi.Event, eventBatch)
	for c.err == nil {
		n, err := s.dm.Wait(events, c.deadline())
		now := time.Now()
		for i := 0; i < n && c.err == nil; i++ {
			c.event(now, &events[i])
		}
		if err != nil {
			c.fail(err)
		}
		s.work(now)
	}
	s.err = c.err
	if c.leaving != nil {
		s.err = c.leaving // then it does not matter how the target has ended it
	}
	if !errors.Is(s.err, net.ErrClosed) {
		s.err = fmt.Errorf("session with %s: %w", s.target, s.err)
		s.log.WithField("err", s.err).Warn("session lost")
	} else {
		s.log.Info("logged out")
	}
	if err := s.dm.Close(); err != nil {
		s.log.WithField("err", err).Warn("connection did not close in order")
	}
	c.end(s.err)
	for _, l := range s.mail.close(s.err) {
		if !l.r.ended {
			c.finish(l.r, &lostError{s.err, true})
		}
	}
	s.tell()
}

// work is the part of a round behind its events.
func (s *Session) work(now time.Time) {
	c := s.core
	if c.err == nil {
		for _, l := range s.mail.take() {
			c.submit(now, l)
		}
		c.tick(now)
	}
	if c.err == nil {
		c.pump(now)
		if err := s.dm.Flush(); err != nil {
			c.fail(err)
		}
	}
	s.tell()
}

// tell wakes the callers whose requests are finished, and gives back the tokens of freed slots.
func (s *Session) tell() {
	c := s.core
	for i, r := range c.finished {
		c.finished[i] = nil
		if r.batch != nil {
			r.batch.complete(r.op)
		} else {
			r.done <- struct{}{}
		}
	}
	c.finished = c.finished[:0]
	for ; c.taskFreed > 0; c.taskFreed-- {
		<-s.tasks
	}
	for ; c.managementFreed > 0; c.managementFreed-- {
		<-s.management
	}
}

// post hands a letter to the loop.
func (s *Session) post(l letter) error {
	wake, err := s.mail.put(l)
	if wake {
		s.dm.Wake()
	}
	return err
}

// begin waits for a token and posts r. If it fails r is still the caller's.
func (s *Session) begin(ctx context.Context, r *request, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
	default:
		select {
		case tokens <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.done:
			return &lostError{s.err, true}
		}
	}
	if err := s.post(letter{r: r}); err != nil {
		return &lostError{err, true}
	}
	return nil
}

// await waits for r's end. If ctx ends first the loop is asked to give r up, which it does at once;
// cancelled then says that r must not be recycled.
func (s *Session) await(ctx context.Context, r *request) (cancelled bool) {
	select {
	case <-r.done:
		return false
	case <-ctx.Done():
	}
	// If the loop is gone it has ended r, or is about to.
	_ = s.post(letter{r, context.Cause(ctx)})
	<-r.done
	return true
}

// ask runs r, which is no command, to its end.
func (s *Session) ask(ctx context.Context, r *request) (request, error) {
	if err := s.begin(ctx, r, s.management); err != nil {
		return request{}, err
	}
	cancelled := s.await(ctx, r)
	out := *r
	if !cancelled {
		s.requests.put(r)
	}
	return out, out.err
}

// Params are the negotiated keys.
func (s *Session) Params() iscsi.Params { return s.params }

// Done is closed when the session is over; Err then says why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session is over: it wraps net.ErrClosed after Close, and is nil as long as the session
// lives.
func (s *Session) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Close logs out and closes the connection. It returns when all goroutines have ended. Commands in
// progress end with an error that wraps net.ErrClosed. The error is that of a session that was already lost.
func (s *Session) Close() error {
	s.closeOnce.Do(func() { _ = s.post(letter{r: &request{kind: requestClose, done: make(chan struct{}, 1)}}) })
	<-s.done
	if errors.Is(s.err, net.ErrClosed) {
		return nil
	}
	return s.err
}

// A Command is one SCSI command with its buffers. At most one of In and Out is set: bidirectional commands
// are not supported. The expected data transfer length is that of the buffer.
type Command struct {
	LUN iscsi.LUN
	CDB []byte // at most iscsi.MaxCDB bytes
	In  []byte // room for data from the target
	Out []byte // data for the target; not changed, not kept after Do returns
	// Attr is the task attribute; the zero value means AttrSimple.
	Attr iscsi.TaskAttr
}

func (c *Command) check(cdb []byte) error {
	switch {
	case len(cdb) == 0 || len(cdb) > iscsi.MaxCDB:
		return fmt.Errorf("CDB of %d bytes", len(cdb))
	case len(c.In) > 0 && len(c.Out) > 0:
		return errors.New("bidirectional commands are not supported")
	case uint64(len(c.In)) > math.MaxUint32 || uint64(len(c.Out)) > math.MaxUint32:
		return errors.New("data of 4 GiB or more")
	}
	return nil
}

// A Result is a command's outcome.
type Result struct {
	Status    uint8
	Sense     []byte
	Received  int // bytes of In that hold data
	Underflow bool
	Overflow  bool
	Residual  int
}

// Do runs a command and waits for its end. err is about the session or the context, not about the SCSI
// status: see Result.Err. If ctx ends first the task is aborted; Do returns at once, and c's buffers are
// not touched any more. Where they are memory of AllocBuffer, it returns when that has become true.
//
// Other errors: ErrTimeout, ErrAborted, *ProtocolError (this response could not be used),
// *iscsi.RejectError, and Session.Err of a session that is over.
func (s *Session) Do(ctx context.Context, c Command) (Result, error) {
	r, err := s.submit(ctx, c, c.CDB)
	if err != nil {
		return Result{}, err
	}
	return s.finish(ctx, r)
}

// submit starts a command; finish must follow. The CDB stands apart from c because it is copied: it may live
// on the caller's stack.
func (s *Session) submit(ctx context.Context, c Command, cdb []byte) (*request, error) {
	if err := c.check(cdb); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	r := s.requests.get(requestCommand)
	r.cmd = c
	r.cmd.CDB = append(r.cdb[:0], cdb...)
	if err := s.begin(ctx, r, s.tasks); err != nil {
		s.requests.put(r)
		return nil, err
	}
	return r, nil
}

func (s *Session) finish(ctx context.Context, r *request) (Result, error) {
	cancelled := s.await(ctx, r)
	res, err := r.result, r.err
	if !cancelled {
		s.requests.put(r)
	}
	return res, err
}

// Ping sends a NOP-Out and waits for its answer.
func (s *Session) Ping(ctx context.Context) (time.Duration, error) {
	r, err := s.ask(ctx, s.requests.get(requestPing))
	return r.elapsed, err
}

// TaskManagement asks for a function on a logical unit (the reset functions: on the target). Functions on
// single tasks are refused: Do aborts a task when its context ends. Commands that the function has ended
// return ErrAborted. Functions of RFC 7144 are answered "not supported": a session has iSCSIProtocolLevel 1.
func (s *Session) TaskManagement(ctx context.Context, f iscsi.TMFunction, lun iscsi.LUN) (iscsi.TMResponse, error) {
	if f == iscsi.TMAbortTask || f == iscsi.TMTaskReassign || f == iscsi.TMQueryTask {
		return 0, fmt.Errorf("task management: %s is not for callers", f)
	}
	r := s.requests.get(requestTMF)
	r.function, r.lun = f, lun
	out, err := s.ask(ctx, r)
	return out.response, err
}
