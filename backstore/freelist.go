package backstore

// A freeList keeps a few things for use again. Unlike a sync.Pool it is not emptied by the garbage
// collector, so that a warm path does not allocate.
type freeList[T any] struct {
	items chan *T
}

// freeListSize bounds what is kept; more at a time are made new and dropped.
const freeListSize = 32

func newFreeList[T any]() freeList[T] { return freeList[T]{make(chan *T, freeListSize)} }

func (l freeList[T]) get() *T {
	select {
	case t := <-l.items:
		return t
	default:
		return new(T)
	}
}

func (l freeList[T]) put(t *T) {
	select {
	case l.items <- t:
	default:
	}
}
