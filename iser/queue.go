package iser

// A queue is first in, first out. It allocates only while it grows; what may be in it is bounded by who
// pushes.
type queue[T any] struct {
	ring []T // its length is a power of two
	head int
	n    int
}

func (q *queue[T]) len() int { return q.n }

// front is the oldest element; the queue must not be empty.
func (q *queue[T]) front() *T { return q.at(0) }

func (q *queue[T]) at(i int) *T { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *queue[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(16, 2*q.n))
		for i := range q.n {
			ring[i] = *q.at(i)
		}
		q.ring, q.head = ring, 0
	}
	q.n++
	*q.at(q.n - 1) = v
}

func (q *queue[T]) pop() T {
	v := *q.front()
	var zero T
	*q.front() = zero // drop references
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}

// remove drops the elements for which drop is true and keeps the order of the others.
func (q *queue[T]) remove(drop func(T) bool) {
	for range q.n {
		if v := q.pop(); !drop(v) {
			q.push(v)
		}
	}
}
